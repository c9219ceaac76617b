"""The step of a job as a program that can run together with others, from its timeline.

The row with the most messages stands for its node. Its compute lane is cut where messages leave, where they are waited
for, and around those that compute itself waits in; what lies between two cuts is one task. Time in which the lane only
waits for a message is no part of it: the wait follows from the message. All other gaps (launches, other stages,
servers) stay as they are.

What a job sends through the uplinks of leaf switches: if g of its n nodes are below one switch, a node sends
(n − g)/(n − 1) of its bytes through the uplink, as in :func:`traincast.cluster.topology.inter_bandwidth_factor`. So a
job that uses the share w of the NICs of all its nodes uses w · g · B · (n − g)/(n − 1) / U of an uplink of U bytes/s,
where a node has NICs of B bytes/s. Long messages do not reach the rate of a NIC, and an uplink that is the bottleneck
is no better: two jobs whose messages it bounds take twice as long each. So weights count from what long messages reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.cluster.topology import inter_bandwidth_factor
from traincast.estimate import CostModel
from traincast.forecast import Forecast
from traincast.resources.draws import network_of
from traincast.resources.forecasting import moves_on_device
from traincast.resources.spans import Levels, SpanDraws, rows_of
from traincast.scheduling.sharing.server_programs import ServerProgram, server_program
from traincast.scheduling.sharing.together import StepProgram
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.strategy.servers.setup import ServerSetup
from traincast.work import Collective

Floats = npt.NDArray[np.float64]

_NEAR: Final = 1e-9
"""Times that differ by less than this share of the step are the same."""
_CHAINED: Final = 0.1
"""A message follows another one that ended within this share of the step before it, unless a work releases it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A message beside computation: its times alone, its weights, and when it is released and needed."""

    task: int
    start: float
    end: float
    send: float
    receive: float
    stream: int
    released: float
    needed: float


def forecast_program(forecast: Forecast) -> StepProgram | ServerProgram:
    """Return the step of a forecast as a program; its steps take the forecast time if it runs alone.

    A job whose workers and parameter servers are on several nodes keeps all of them.
    """
    if forecast.servers is not None and forecast.servers.setup.num_nodes > 1:
        return server_program(forecast.servers, step_s=forecast.report.step_s)
    return node_program(forecast)


def node_program(forecast: Forecast) -> StepProgram:
    """Return the step of a forecast as the node with the most traffic sees it."""
    return program_of(
        forecast.timeline,
        forecast.request.cluster,
        step_s=forecast.report.step_s,
        on_device=moves_on_device(forecast.request),
        servers=forecast.servers.setup if forecast.servers else None,
    )


def program_of(
    timeline: Timeline,
    cluster: Cluster,
    *,
    step_s: float | None = None,
    on_device: bool = True,
    servers: ServerSetup | None = None,
) -> StepProgram:
    """Return the step of a timeline on ``cluster`` as a program, stretched to ``step_s``.

    Weights are shares of the device's time and memory bandwidth, and of all NICs of the node with the most traffic,
    which may be that of a parameter server. Messages inside a node are shared with no other job. The arguments are
    those of :func:`traincast.resources.curves.curves_of`.
    """
    plan, whole = timeline.plan, timeline.step_s
    network = network_of(plan.works, cluster, through_host=servers is not None)
    rows = rows_of(plan, cluster, servers)
    drawn = SpanDraws(timeline, rows, network, on_device=on_device and servers is None)
    devices = np.flatnonzero(~rows.is_server)
    sent = {int(row): drawn.messages(int(row)) if network.leaves_node else {} for row in range(len(plan.ranks))}
    total = np.array([sum(a + b for a, b in sent[row].values()) for row in range(len(plan.ranks))])
    row = int(devices[np.argmax(total[devices])])
    scale = float((rows.on_node @ total).max()) / total[row] if total[row] > 0.0 else 1.0
    beside, inside = _messages(timeline, row, {k: (a * scale, b * scale) for k, (a, b) in sent[row].items()})
    cuts, removed = _cuts(timeline, row, beside, inside)
    kernels, traffic = drawn.levels("compute")[row], drawn.levels("memory")[row]
    length = np.diff(cuts)
    duration = np.maximum(0.0, length - removed)
    weights = {
        "device": _mean(kernels, cuts, duration, whole),
        "memory": _mean(traffic, cuts, duration, whole),
        **{name: _within(inside, cuts, number) for number, name in enumerate(("send", "receive"))},
    }
    made = _joined(cuts, duration, weights, beside, whole)
    return _stretched(made, whole if step_s is None else step_s)


def _messages(
    timeline: Timeline, row: int, amounts: dict[int, tuple[float, float]]
) -> tuple[list[_Message], list[tuple[float, float, float, float]]]:
    """Messages beside computation, and (start, end, send, receive) of those in which compute itself waits."""
    plan = timeline.plan
    lane = timeline.spans().on(row, Stream.COMPUTE)
    in_line = set(lane.task.tolist())
    released, needed = _released(timeline, row, in_line), _needed(timeline, row, in_line)
    whole = timeline.end - timeline.start if timeline.whole_s is None else timeline.whole_s
    beside, inside = [], []
    for task, (send, receive) in sorted(amounts.items(), key=lambda item: timeline.start[item[0]]):
        start, end, seconds = float(timeline.start[task]), float(timeline.end[task]), float(whole[task])
        if end <= start or seconds <= 0.0:
            continue
        weights = min(1.0, send / seconds), min(1.0, receive / seconds)
        if task in in_line:
            inside.append((start, end, *weights))
            continue
        stream = int(plan.lanes[plan.lane_start[task]] % NUM_STREAMS)
        beside.append(
            _Message(
                task=task,
                start=start,
                end=end,
                send=weights[0],
                receive=weights[1],
                stream=stream,
                released=min(released.get(task, -1.0), start),
                needed=needed.get(task, timeline.step_s),
            )
        )
    return beside, inside


def _released(timeline: Timeline, row: int, in_line: set[int]) -> dict[int, float]:
    """For tasks that wait for works of the row's compute lane, the end of the last of these."""
    plan = timeline.plan
    found: dict[int, float] = {}
    mine = _holds(plan, row)
    waiter = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    for task, source in zip(waiter.tolist(), plan.predecessors.tolist(), strict=True):
        if source in in_line and mine[task]:
            found[task] = max(found.get(task, 0.0), float(timeline.end[source]))
    return found


def _needed(timeline: Timeline, row: int, in_line: set[int]) -> dict[int, float]:
    """For tasks that works of the row's compute lane wait for, directly or by their launch, the first such start."""
    plan = timeline.plan
    found: dict[int, float] = {}
    waiter = np.repeat(np.arange(plan.num_tasks), np.diff(plan.predecessor_start))
    pairs = list(zip(waiter.tolist(), plan.predecessors.tolist(), strict=True))
    launches = plan.category == Category.HOST
    begins = {task: float(timeline.start[task]) for task in in_line}
    for task, source in pairs:
        if launches[source] and task in in_line:
            begins[source] = min(begins.get(source, np.inf), float(timeline.start[task]))
    for task, source in pairs:
        if task in begins and source not in in_line and not launches[source]:
            found[source] = min(found.get(source, np.inf), begins[task])
    return found


def _holds(plan: Plan, row: int) -> npt.NDArray[np.bool_]:
    """Which tasks hold a lane of the row."""
    holder = np.repeat(np.arange(plan.num_tasks), np.diff(plan.lane_start))
    found = np.zeros(plan.num_tasks, dtype=bool)
    found[holder[plan.lanes // NUM_STREAMS == row]] = True
    return found


def _cuts(
    timeline: Timeline, row: int, beside: list[_Message], inside: list[tuple[float, float, float, float]]
) -> tuple[Floats, Floats]:
    """Times at which the compute lane is cut, and the seconds between each two in which it only waits for messages."""
    whole = timeline.step_s
    lane = timeline.spans().on(row, Stream.COMPUTE)
    near = _NEAR * whole
    free = np.append(0.0, np.maximum.accumulate(lane.end)) if len(lane.end) else np.zeros(1)
    begins = np.append(lane.start, whole)
    gaps = [(float(a), float(b)) for a, b in zip(free, begins, strict=True) if b - a > near]
    waits: list[tuple[float, float]] = []
    for since, until in gaps:
        late = [m for m in beside if abs(m.needed - until) <= near and m.end > since + near]
        if late:
            waits.append((max(since, min(m.start for m in late)), min(until, max(m.end for m in late))))
    times = [0.0, whole, *(t for wait in waits for t in wait), *(t for entry in inside for t in entry[:2])]
    times += [t for m in beside for t in (m.needed, m.released if m.released >= 0.0 else m.start)]
    ordered = np.sort(np.clip(times, 0.0, whole))
    cuts = ordered[np.append(True, np.diff(ordered) > near)]
    cuts[-1] = whole
    removed = np.zeros(len(cuts) - 1)
    for since, until in waits:
        middle = (cuts[:-1] + cuts[1:]) / 2
        chosen = (middle > since) & (middle < until)
        removed[chosen] = np.diff(cuts)[chosen]
    return cuts, removed


def _mean(levels: Levels, cuts: Floats, duration: Floats, whole: float) -> Floats:
    """The mean level of each task: what is drawn between its cuts, over its duration."""
    times, level = levels
    ends = np.append(times, whole)
    total = np.concatenate([[0.0], np.cumsum(level * np.diff(ends))])
    drawn = np.diff(np.interp(cuts, ends, total))
    means: Floats = np.divide(drawn, duration, out=np.zeros_like(drawn), where=duration > 0.0)
    return np.minimum(1.0, means)


def _within(inside: list[tuple[float, float, float, float]], cuts: Floats, number: int) -> Floats:
    """The network weight of the tasks between cuts, by messages in which compute itself waits."""
    weight, middle = np.zeros(len(cuts) - 1), (cuts[:-1] + cuts[1:]) / 2
    for start, end, *weights in inside:
        weight[(middle > start) & (middle < end)] += weights[number]
    return np.minimum(1.0, weight)


def _joined(
    cuts: Floats, duration: Floats, weights: dict[str, Floats], beside: list[_Message], whole: float
) -> StepProgram:
    """The tasks of the compute lane, then delays and messages, with who waits for whom."""
    count, near = len(duration), _NEAR * whole * 2.0
    seconds, lane = duration.tolist(), [0] * count
    after: list[tuple[int, ...]] = [() if not n else (n - 1,) for n in range(count)]
    columns = {name: weight.tolist() for name, weight in weights.items()}
    apart = _one_at_a_time(beside, near)
    ended: list[tuple[float, int]] = []
    for message in beside:
        last = max((end for end, _ in ended if end <= message.start + near), default=-1.0)
        by_message = message.released < 0.0 and message.start - last <= _CHAINED * whole and last >= 0.0
        if by_message:
            source, at = next(task for end, task in reversed(ended) if end == last), last
        else:
            at = message.released if message.released >= 0.0 else message.start
            source = int(np.searchsorted(cuts, at - near)) - 1  # the task that ends at the cut
            at = max(at, last if message.stream in apart else at)
        delay = max(0.0, message.start - at)
        sent: dict[str, float] = {"send": message.send, "receive": message.receive}
        entries: list[tuple[float, dict[str, float]]] = [(delay, {})] if delay > near else []
        for took, drawn in (*entries, (message.end - message.start, sent)):
            seconds.append(took)
            lane.append(1 + message.stream if drawn and message.stream in apart else -1)
            after.append((source,) if source >= 0 else ())
            for name, column in columns.items():
                column.append(drawn.get(name, 0.0))
            source = len(seconds) - 1
        ended.append((message.end, source))
        if message.needed < whole - near:
            first = int(np.searchsorted(cuts, message.needed - near))
            if first < count:
                after[first] = (*after[first], source)
    return StepProgram(
        duration=np.array(seconds),
        lane=np.array(lane, dtype=np.int64),
        after=tuple(after),
        weights={name: np.array(column) for name, column in columns.items() if any(column)},
    )


def _one_at_a_time(beside: list[_Message], near: float) -> set[int]:
    """The streams whose messages never overlap."""
    overlapping, last = set(), dict[int, float]()
    for message in beside:
        if message.start < last.get(message.stream, -1.0) - near:
            overlapping.add(message.stream)
        last[message.stream] = max(message.end, last.get(message.stream, -1.0))
    return set(last) - overlapping


def _stretched(program: StepProgram, step_s: float) -> StepProgram:
    """The program with steps of ``step_s`` seconds; messages move the same bytes in the longer time."""
    alone = program.step_s
    factor = step_s / alone if alone > 0.0 else 1.0
    weights = {n: np.minimum(1.0, w / factor) if n != "device" else w for n, w in program.weights.items()}
    return StepProgram(duration=program.duration * factor, lane=program.lane, after=program.after, weights=weights)


_LONG: Final = float(1 << 30)
"""Bytes of a message whose time is all bandwidth."""


def switch_program(forecast: Forecast, uplink: float) -> StepProgram:
    """Return the step of a forecast as a program that shares uplinks of ``uplink`` bytes/s, and nothing else.

    ``group_nodes`` nodes of the forecast's cluster are below one switch.
    """
    cluster = forecast.request.cluster
    n, g = cluster.num_nodes, cluster.group_nodes
    if n <= g:
        return node_program(forecast).only()
    demand = g * cluster.inter_node.bandwidth * cluster.nics_per_node * (n - g) / (n - 1) / uplink
    reached = reached_share(cluster, forecast.cost_model)
    return node_program(forecast).below_switches(demand / reached).only("switch_receive", "switch_send")


def reached_share(cluster: Cluster, cost_model: CostModel) -> float:
    """Return the share of its NICs, or of what uplinks leave of them, that a long all_reduce of all nodes reaches."""
    n = cluster.num_nodes
    work = Collective(kind="all_reduce", nbytes=_LONG, num_ranks=n * cluster.devices_per_node, num_nodes=n)
    seconds = float(cost_model.estimate([work], cluster).seconds[0])
    rate = 2.0 * (n - 1) / n * _LONG / seconds
    links = cluster.inter_node.bandwidth * cluster.nics_per_node * inter_bandwidth_factor(cluster, n)
    return min(1.0, rate / links)
