"""What ``monitor`` and ``resources compare`` are asked.

Their functions stand in this room, where what runs meets what it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from traincast.ask import Count, File, JsonRecord, Option, python_only
from traincast.resources.ask import HZ, RATE


@dataclass(frozen=True, slots=True)
class MonitorAsk(JsonRecord):
    """What ``monitor`` is asked: a command or a process, and how it is sampled."""

    command: Annotated[Sequence[str], Option("The words of the command to run and sample.")] = ()
    _: KW_ONLY
    pid: Annotated[Count | None, Option("Sample this process, which runs already.", "PID")] = None
    hz: Annotated[float, Option("Samples per second, as a monitor would take them; from 10 to 100.", RATE.metavar)] = HZ
    for_s: Annotated[float | None, Option("Stop sampling after this time.", "TIME", flag="--for", time=True)] = None
    link_rate: Annotated[
        str | None,
        Option(
            "Rate of the machine's network link, such as 1Gbit, of which network amounts are shares. Detected if "
            "omitted.",
            "RATE",
        ),
    ] = None
    quiet: Annotated[bool, python_only("What the command writes to standard output goes to standard error.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedWith(JsonRecord):
    """What a run is compared with."""

    events: Annotated[
        File | None,
        Option(
            "Use the times measured by `traincast profile events`; estimate only what FOLDER does not have. If "
            "omitted, RUN/events is used if it exists.",
            "FOLDER",
        ),
    ] = None
    hz: Annotated[float | None, RATE] = None


@dataclass(frozen=True, slots=True)
class ResourceCompareAsk(ComparedWith):
    """What ``resources compare`` is asked: a run, and its forecast if that is in a file."""

    run: Annotated[File, python_only("The folder of a run that was sampled.")]
    _: KW_ONLY
    forecast: Annotated[
        File | None, python_only("A file that `predict --resources --json` wrote; it has figures, and no curves.")
    ] = None
