"""What ``profile machine`` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from traincast.ask import Count, JsonRecord
from traincast.profiling.ask import DEVICE, REPEATS, THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAsk(JsonRecord):
    """Which device of this machine is measured, and how."""

    device: Annotated[str, DEVICE] = "cpu"
    threads: Annotated[Count, THREADS] = 1
    repeats: Annotated[Count, REPEATS] = 20
