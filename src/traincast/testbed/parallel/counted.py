"""What the emulated device of a worker does within a pass, for a sampler: its operators, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from traincast.profiling.monitor.device_counter import DeviceCounter
from traincast.simulate.server_timeline import ServerJob
from traincast.strategy.program.item import Item
from traincast.testbed.rank.clock import now, sleep_until
from traincast.work import demand_of

_LEAST_SLEEP_S: Final = 1e-3
"""The counter may be this far ahead of the device."""


class _Share(NamedTuple):
    """An operator: its share of the time of its pass, and the bytes that it moves."""

    time: float
    nbytes: float


class CountedPasses:
    """Counts the operators of every piece while a worker with parameter servers sleeps through its passes."""

    def __init__(self, job: ServerJob, worker: int, counter: DeviceCounter) -> None:
        kind = job.setup.kind(worker)
        seconds = dict(zip(job.works, job.seconds[kind].tolist(), strict=True))
        self._counter = counter
        self._passes = [
            [
                _shares([(seconds[i.work], i) for i in items] * job.num_microbatches)
                for items in (program.forward, program.backward)
            ]
            for program in job.programs[kind]
        ]

    def run(self, piece: int, *, backward: bool, start_s: float, end_s: float) -> None:
        """Counts the operators of a pass between two moments, each as it begins."""
        at, whole = start_s, end_s - start_s
        for share in self._passes[piece][backward]:
            until = at + share.time * whole
            self._counter.add(at, until, share.nbytes)
            at = until
            if at - now() > _LEAST_SLEEP_S:
                sleep_until(at)


def _shares(items: Sequence[tuple[float, Item]]) -> list[_Share]:
    whole = sum(seconds for seconds, _ in items)
    return [_Share(seconds / whole, demand_of(item.work).memory_access_bytes) for seconds, item in items if seconds]
