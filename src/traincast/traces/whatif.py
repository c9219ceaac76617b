"""What-if questions: a recording, changed and run again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from traincast.traces.changes.change import TraceChange
from traincast.traces.recording.recording import Recording
from traincast.traces.replay import Replayed, measured_steps_s, opaque_share, run, unexplained

_NINETY: Final = 1.645
_LEAST: Final = 0.005
_FEW_STEPS: Final = 0.03
"""Spread that is assumed where a trace has fewer than three steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """The time per step before and after changes, in seconds; ``refused`` says why there is none.

    ``low_s`` is the fastest plausible answer: favourable assumptions, and no delay that nothing explains. ``high_s`` is
    the slowest. Both include how much the mean of the recorded steps varies. ``assumptions`` are those of the changes,
    in order; ``notes`` are those of the recording. ``opaque_share`` is the share of the critical path before the
    changes that nothing recorded explains.
    """

    changes: tuple[str, ...]
    base_s: float
    opaque_share: float
    step_s: float | None
    low_s: float | None
    high_s: float | None
    assumptions: tuple[str, ...]
    refused: str | None
    notes: tuple[str, ...] = ()
    replayed: Replayed | None = field(default=None, repr=False)

    @property
    def speedup(self) -> float | None:
        """The time before over the time after."""
        return self.base_s / self.step_s if self.step_s else None

    def to_dict(self) -> dict[str, Any]:
        """Everything but ``replayed``, as ``trace whatif --json`` prints it."""
        names = ("base_s", "step_s", "low_s", "high_s", "speedup", "opaque_share", "changes", "assumptions", "refused")
        return {name: getattr(self, name) for name in (*names, "notes")}


def ask(recording: Recording, changes: Sequence[TraceChange]) -> WhatIfAnswer:
    """Apply changes one after another, and run the result; refuse what the recording cannot tell."""
    base = run(recording)
    texts = tuple(change.text for change in changes)
    assumptions = tuple(change.assumption for change in changes)
    opaque = opaque_share(base)
    refusals = [f"{c.text}: {reason}" for c in changes if (reason := c.refusal(recording)) is not None]
    if reasons := [*refusals, *unexplained(opaque)]:
        return WhatIfAnswer(
            changes=texts, base_s=base.pace_s, opaque_share=opaque, step_s=None, low_s=None, high_s=None,
            assumptions=assumptions, refused=reasons[0], notes=recording.notes,
        )  # fmt: skip
    expected, fastest, slowest = recording, recording.strict(), recording
    for change in changes:
        expected = change.apply(expected, 0)
        fastest = change.apply(fastest, -1)
        slowest = change.apply(slowest, 1)
    after = run(expected)
    spread = _spread(recording)
    ends = [after.pace_s, run(fastest).pace_s * (1 - spread), run(slowest).pace_s * (1 + spread)]
    return WhatIfAnswer(
        changes=texts,
        base_s=base.pace_s,
        opaque_share=opaque,
        step_s=after.pace_s,
        low_s=min(ends),
        high_s=max(ends),
        assumptions=assumptions,
        refused=None,
        notes=recording.notes,
        replayed=after,
    )


def _spread(recording: Recording) -> float:
    """Return the relative error of the mean of the recorded steps: 90 % of such means lie within it."""
    steps = measured_steps_s(recording, 0)
    if len(steps) < 3:
        return _FEW_STEPS
    return max(_LEAST, _NINETY * float(np.std(steps, ddof=1) / np.mean(steps)) / math.sqrt(len(steps)))
