"""What ``profile events`` is asked: a step, and how its works are measured."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from traincast.ask import Ask, Count, JsonRecord, Option, option_of
from traincast.profiling.ask import COMPUTE, REPEATS, THREADS, TIMED_STEPS


@dataclass(frozen=True, slots=True)
class EventsAsk(JsonRecord):
    """The step whose works are measured. All fields are texts and numbers: the processes that measure get it as JSON.

    ``cluster`` is a name or a ``.toml`` file. ``compute`` is ``real``, or the device whose estimated times the
    operators take instead of running. ``network`` is a note for the card. Collectives are repeated ``repeats`` times at
    most, model steps ``steps`` times.
    """

    model: Annotated[str, option_of(Ask, "model")]
    _: KW_ONLY
    cluster: Annotated[str, option_of(Ask, "cluster")]
    strategy: Annotated[
        str, Option("How to distribute the work over the devices. Its works are measured.", "dp=8,tp=4,…")
    ]
    global_batch: Annotated[Count, option_of(Ask, "global_batch")]
    seq: Annotated[Count | None, option_of(Ask, "seq")] = None
    precision: Annotated[str, option_of(Ask, "precision")] = "fp32"
    runtime: Annotated[str, option_of(Ask, "runtime")] = "pytorch"
    compute: Annotated[str, COMPUTE] = "real"
    network: Annotated[str, Option("What to write about the network into the folder.", "TEXT", flag="--note")] = ""
    threads: Annotated[Count, THREADS] = 1
    repeats: Annotated[Count, REPEATS] = 30
    steps: Annotated[Count, TIMED_STEPS] = 12

    def step(self, *, use_cache: bool = True) -> Ask:
        """Return the ask of the step alone."""
        return Ask(
            self.model,
            cluster=self.cluster,
            strategy=self.strategy,
            global_batch=self.global_batch,
            seq=self.seq,
            precision=self.precision,
            runtime=self.runtime,
            use_cache=use_cache,
        )
