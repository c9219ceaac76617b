"""What a what-if question about resources asks: a step, what is to be different, and how finely use is sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from traincast.ask import Ask, Count, Option

HZ: Final = 50.0
"""Samples per second that a monitor takes, unless another rate is asked for."""

RATE: Final = Option(
    "Samples per second, as a monitor would take them; 0: as fine as the simulation. Default: 50.", "RATE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAsk(Ask):
    """What ``resources whatif`` is asked; a change that is None leaves the step as it is."""

    to_gpu: Annotated[str | None, Option("Another device in the same nodes (see `traincast devices`).", "DEVICE")] = (
        None
    )
    to_servers: Annotated[int | None, Option("Another number of parameter servers; 0: all-reduce.", "P")] = None
    to_workers: Annotated[int | None, Option("Another number of workers. Each keeps its share of the batch.", "W")] = (
        None
    )
    to_batch: Annotated[Count | None, Option("Another global batch.", "N")] = None
    hz: Annotated[float | None, RATE] = HZ
