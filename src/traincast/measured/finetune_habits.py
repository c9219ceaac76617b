"""Figures of fine-tuning runs that no table states and that were chosen by looking at measured runs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from traincast.measured.finetune_words import Tuning
from traincast.strategy import find_runtime
from traincast.tables import Row, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How fine-tuning runs behave where a row does not say.

    ``padded``: tokens computed per token counted, if batches of similar lengths are padded to their longest sequence.
    ``start_s``: seconds that the first step takes longer than others, if the time of a step is that of a short run.
    ``update_passes``: how often an update that is not fused reads and writes its tensors;
    0 leaves it to the runtime. ``targets``: layers that Megatron's recipes adapt by default; none leaves it to the
    reader. With ``methods``, the extra kernels of adapter methods other than LoRA are counted.
    """

    padded: float = 1.08
    start_s: float = 2.0
    update_passes: int = 0
    targets: tuple[str, ...] = ()
    methods: bool = True

    def of(self, row: Row, tuning: Tuning) -> Tuning:
        """Return what a row says of its fine-tuning, with the targets and methods of these habits."""
        if self.targets and not tuning.targets and tuning.method != "full" and _megatron(row):
            tuning = replace(tuning, targets=self.targets)
        if not self.methods and tuning.method not in ("full", "lora"):
            tuning = replace(tuning, method="lora", targets=(), rank=0 if tuning.trainable else tuning.rank)
        return tuning


USUAL: Final = Habits()
"""The habits of forecasts."""
NEUTRAL: Final = Habits(padded=1.0, start_s=0.0, update_passes=1, targets=("q", "v"), methods=False)
"""What one would take who has seen no run.

Nothing is padded or slower at first, and all adapters are LoRA.
"""
NAMES: Final = tuple(field.name for field in fields(Habits))


def _megatron(row: Row) -> bool:
    return find_runtime(text(row, "framework")).name.startswith("megatron") if text(row, "framework") else False
