"""Use of resources over time, from a simulated timeline.

Every span draws what its work demands, evenly over its duration, as a share of the peak of the device or link. Added
up, that gives a piecewise-constant function of time for each resource and rank. A step repeats, and so does the
function. It is then sampled as monitoring tools sample: the mean over each period.

* ``compute``: the share of time in which a kernel runs, as NVML and other monitors count the use of a device. Kernels
  of collectives count; ``flops`` is the share of the peak FLOP rate instead.
* ``memory``: bytes read and written, as a share of the memory's bandwidth.
* ``receive``, ``send``: bytes that a rank receives and sends, as a share of all NICs of its node; if no message
  leaves a node, as a share of the device's links inside it.
* ``host``: bytes between device and host, as a share of their link.
* ``memory_held``: bytes allocated, as a share of the device's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import RequestError
from traincast.estimate.resource_use import RESOURCES, ResourceUse
from traincast.resources.ask import HZ
from traincast.resources.bursts import use_of
from traincast.resources.draws import WatchedLinks, network_of
from traincast.resources.spans import SpanDraws, held_levels, rows_of
from traincast.simulate import Timeline
from traincast.strategy.servers.setup import ServerSetup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CURVES: Final = (*RESOURCES, "flops", "host", "memory_held")
"""The names of all curves."""
NETWORK: Final = ("receive", "send")
_EXACT_SAMPLES: Final = 2000
_FEWEST_SAMPLES: Final = 250
_FEWEST_STEPS: Final = 10
_MOST_SAMPLES: Final = 20_000
_MOST_VALUES: Final = 4_000_000
"""Most samples of one resource, over all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Sampled use of each resource: ``values`` has arrays of (rows, samples), one sample every ``period_s`` seconds.

    A row is one rank, or one parameter server, with the number in ``ranks``; servers count on from the last rank. If
    ranks that do the same were simulated once, a row stands for all of them: ``on_node`` has, for every node and row,
    the ranks there that it stands for. If ``repeats``, the samples are one step; otherwise they are an observation of
    several steps of ``step_s`` seconds.
    """

    period_s: float
    values: dict[str, Floats] = field(hash=False)
    ranks: Ints
    num_ranks: int
    on_node: Floats
    step_s: float
    network: WatchedLinks
    repeats: bool = False

    @property
    def rows(self) -> range:
        """The numbers of all rows."""
        return range(len(self.ranks))

    def scope_of(self, row: int) -> tuple[str, int]:
        """What a row is, ``rank`` or ``server``, and its number."""
        rank = int(self.ranks[row])
        return ("rank", rank) if rank < self.num_ranks else ("server", rank - self.num_ranks)

    def row_of(self, rank: int) -> int:
        """The row of a rank; a rank that was not simulated itself has the row of the last one before it."""
        return int(np.searchsorted(self.ranks, rank, side="right")) - 1

    def of_nodes(self) -> dict[str, Floats]:
        """The curves of every node, as (nodes, samples): messages of its ranks add up, other curves are means."""
        ranks = np.maximum(1.0, self.on_node.sum(axis=1, keepdims=True))
        devices = self.on_node / ranks
        shared = self.on_node if self.network.leaves_node else devices
        return {
            name: np.minimum(1.0, (shared if name in NETWORK else devices) @ value)
            for name, value in self.values.items()
        }

    def of_node_of(self, rank: int) -> dict[str, Floats]:
        """The curves that a monitor on the node of ``rank`` sees: its own device, and the network of the node."""
        row = self.row_of(rank)
        found = {name: value[row] for name, value in self.values.items()}
        if self.network.leaves_node:
            node = int(np.argmax(self.on_node[:, row] > 0.0))
            found |= {name: np.minimum(1.0, self.on_node[node] @ self.values[name]) for name in NETWORK}
        return found


def curves_of(
    timeline: Timeline,
    cluster: Cluster,
    *,
    hz: float | None = HZ,
    step_s: float | None = None,
    on_device: bool = True,
    servers: ServerSetup | None = None,
    held: Sequence[Floats] = (),
    names: Sequence[str] = CURVES,
) -> Curves:
    """Returns the curves of a timeline on ``cluster``, sampled ``hz`` times per second, or finely if ``hz`` is None.

    The step is stretched to ``step_s`` if that is given. ``on_device`` says that kernels of the device move messages
    (NCCL), not hosts (gloo). ``servers`` is the setup of a timeline with parameter servers, whose messages hosts move.
    ``held`` has, for every stage, the bytes that a rank holds in each slot of its schedule. ``names`` are the curves to
    make.
    """
    if hz is not None and not 0.01 <= hz <= 1e6:
        raise RequestError(f"{hz:g} samples per second: expected from 0.01 to 1,000,000")
    plan = timeline.plan
    network = network_of(plan.works, cluster, through_host=servers is not None)
    rows, shares = rows_of(plan, cluster, servers), {}
    drawn = SpanDraws(timeline, rows, network, on_device=on_device and servers is None)
    length = timeline.step_s if step_s is None else step_s
    stretch = length / timeline.step_s if timeline.step_s else 1.0
    edges, period_s = _edges(length, hz, most=max(_FEWEST_SAMPLES, min(_MOST_SAMPLES, _MOST_VALUES // len(plan.ranks))))
    for name in names:
        levels = held_levels(timeline, rows, held) if name == "memory_held" else drawn.levels(name)
        faster = 1.0 if name in ("compute", "memory_held") else stretch
        shares[name] = np.stack([_sampled(*of_row, timeline.step_s, edges / stretch) / faster for of_row in levels])
    return Curves(
        period_s=period_s,
        values=shares,
        ranks=plan.ranks,
        num_ranks=plan.mesh.num_ranks,
        on_node=rows.on_node,
        step_s=length,
        network=network,
        repeats=hz is None,
    )


def uses_of(curves: Curves, *, rank: int = 0) -> dict[str, ResourceUse]:
    """Returns the use of each of :data:`RESOURCES` as a monitor on the node of ``rank`` sees it.

    Compute and memory are those of the rank's device. Received and sent bytes are those of its node, as the counters
    of its network interfaces show them, or of the device's links if no message leaves a node.
    """
    seen = curves.of_node_of(rank)
    return {name: use_of(seen[name], period_s=curves.period_s, repeats=curves.repeats) for name in RESOURCES}


def _edges(step_s: float, hz: float | None, *, most: int) -> tuple[Floats, float]:
    """The ends of all sampling periods, from 0, and the length of one.

    An observation has at least ten steps, unless these would be more than ``most`` samples; a step that alone would be
    more is sampled less often.
    """
    if hz is None:
        return np.linspace(0.0, step_s, _EXACT_SAMPLES + 1), step_s / _EXACT_SAMPLES
    period_s = max(1.0 / hz, step_s / most)
    count = int(np.clip(np.ceil(_FEWEST_STEPS * step_s / period_s), _FEWEST_SAMPLES, most))
    return np.linspace(0.0, period_s * count, count + 1), period_s


def _sampled(times: Floats, levels: Floats, step_s: float, edges: Floats) -> Floats:
    """Means between ``edges`` of a function that has ``levels`` from each of ``times`` on, and repeats every step."""
    ends = np.append(times, step_s)
    total = np.concatenate([[0.0], np.cumsum(levels * np.diff(ends))])
    steps = np.floor(edges / step_s) if step_s else np.zeros_like(edges)
    drawn = steps * total[-1] + np.interp(edges - steps * step_s, ends, total)
    means: Floats = np.diff(drawn) / np.diff(edges) if step_s else np.zeros(len(edges) - 1)
    return np.maximum(0.0, means)  # a difference of sums may be a rounding below 0
