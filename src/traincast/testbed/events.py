"""Events of a run: the works of its plan, measured by its own ranks between the counted steps.

A run meets its neighbours, and so must the times that its forecast is made from. All ranks stop after every step and
exchange the messages of the plan, in groups of the size that the plan has, all groups at once. With real compute, they
also run steps of the whole model, plain and watched in turns. What the ranks wrote is turned into a folder of events
here.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from traincast import files
from traincast.estimate.events.file import Row, contents_of
from traincast.estimate.events.keys import P2P
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.measure import (
    card_of,
    emulated_interference,
    emulated_rows,
    measure_events,
    row_of_message,
)
from traincast.profiling.events.request import Message, NeededWorks, messages_of, needed_works
from traincast.profiling.timing import disturbed
from traincast.testbed.network import loopback, shaped
from traincast.testbed.request import LOOPBACK, RunRequest
from traincast.testbed.setup import RUNTIME

EVENTS: Final = "events"
"""The folder within a run that has its events."""
EVENTS_FILE: Final = "events.json"
"""What ranks of a run must know about its events, in the folder that they share."""
STATISTIC: Final = (
    "operators: mean of whole steps; messages: mean between the steps of a run, from the last rank's start to the last "
    "rank's end, without samples that other processes disturbed; interval: 1.64 standard errors of that mean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """What to measure between the steps of a run; ``messages`` are the collectives and messages of its plan."""

    asked: EventsAsk
    needed: NeededWorks
    messages: tuple[Message, ...]

    def to_json(self) -> str:
        """Return what ranks must know."""
        return json.dumps({"asked": asdict(self.asked), "messages": [asdict(message) for message in self.messages]})


def request_of(request: RunRequest, cluster: Path) -> EventsAsk:
    """Return the request for the events of a run on the cluster in a file."""
    return EventsAsk(
        model=request.model,
        cluster=str(cluster),
        strategy=request.strategy,
        global_batch=request.global_batch,
        seq=request.seq,
        runtime=RUNTIME,
        compute=request.compute,
        network=request.network,
        threads=request.threads,
    )


def events_of_run(request: RunRequest, cluster: Path) -> RunEvents:
    """Return what to measure between the steps of ``request``, whose strategy must say its micro batch."""
    asked = request_of(request, cluster)
    needed = needed_works(asked)
    messages = messages_of(needed, world=request.ranks, ladder=False) if needed.communicates else []
    return RunEvents(asked=asked, needed=needed, messages=tuple(messages))


def groups_of(num_ranks: int, ranks: int) -> list[tuple[int, ...]]:
    """Return the groups of ``num_ranks`` neighbours that exchange a message at the same time.

    >>> groups_of(2, 5)
    [(0, 1), (2, 3)]
    """
    return [tuple(range(first, first + num_ranks)) for first in range(0, ranks - num_ranks + 1, num_ranks)]


def write_events(
    found: RunEvents, facts: Sequence[Mapping[str, Any]], output: Path, *, rates: Sequence[float] | None
) -> None:
    """Write the folder of events ``output``; ``facts`` are what each rank measured, ``rates`` those of their links."""
    ranks, model = len(facts), found.asked.model
    rows: list[Row] = list(facts[0]["operators"])
    if found.asked.compute != "real":
        rows = emulated_rows(found.needed, processes=ranks, model=model)
        rows += [emulated_interference()] if found.needed.collectives else []
    slowest = None if rates is None else min(rates)
    for number, message in enumerate(found.messages):
        samples: list[tuple[float, float]] = []
        for group in groups_of(message.num_ranks, ranks):
            if rates is None or min(rates[rank] for rank in group) == slowest:
                samples += _samples([facts[rank]["messages"][number] for rank in group])
        share = 0.5 if message.collective == P2P else 1.0  # there and back is two messages
        noisy = disturbed([waited / seconds for seconds, waited in samples])
        kept = [share * seconds for (seconds, _), out in zip(samples, noisy, strict=True) if not out]
        error = statistics.stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else 0.0
        rows.append(row_of_message(message, statistics.fmean(kept), error=error, repeats=len(kept)))
    seconds = max(float(fact["seconds"]) for fact in facts)
    cost = {"seconds": seconds, "process_seconds": seconds * ranks}
    card = card_of(found.asked, found.needed, statistic=STATISTIC, cost=cost)
    files.write_folder(output, contents_of(card, rows))


def _samples(of_ranks: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """Return the seconds of each sample, and those for which its ranks waited for a core.

    A group starts when its last rank does, and ends when its last rank does.
    """
    return [
        (max(end for _, end, _ in each) - max(start for start, _, _ in each), max(waited for *_, waited in each))
        for each in zip(*of_ranks, strict=True)
    ]


def measure_beside(request: RunRequest, cluster: Path, output: Path) -> None:
    """Measure the events of a run with parameter servers into a folder: by two processes, after the run."""
    launcher = EventsLauncher(rate=_slowest(request), urgent=request.emulated)
    measure_events(request_of(request, cluster), output, launcher=launcher)


def _slowest(request: RunRequest) -> float:
    return math.inf if request.network == LOOPBACK else min([request.rate, *(rate for _, rate in request.link_rates)])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsLauncher:
    """Starts processes that measure events, each on a node of its own with links of ``rate`` bytes per second.

    They run as those of a run do: before all others if compute is emulated (``urgent``).
    """

    rate: float
    urgent: bool

    def __call__(self, arguments: Sequence[str], *, ranks: int) -> int:
        """Return 0; raises if a process fails."""
        from traincast.testbed.rank.launch import launch

        words = [sys.executable, "-m", "traincast.profiling.events", *arguments]
        with loopback(ranks) if self.rate == math.inf else shaped([self.rate] * ranks) as network:
            launch([words] * ranks, network, urgent=self.urgent)
        return 0
