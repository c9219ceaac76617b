"""``traincast testbed run``: train on this machine, and keep what every rank did."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from traincast.ask import Progress, verb
from traincast.cluster.catalog import load_device
from traincast.errors import RequestError
from traincast.files import check_folder, make_folder, write_folder, write_json, write_text, writing
from traincast.graph.capture.capture import require_torch
from traincast.graph.load import load_model
from traincast.processes.run import Starter, start_program
from traincast.profiling.events.request import needed_works
from traincast.profiling.machine.device import free_memory
from traincast.profiling.monitor.device_counter import FOLDER as DEVICES
from traincast.profiling.monitor.device_counter import counters
from traincast.resolve import stated_strategy
from traincast.testbed.ask import RunAsk
from traincast.testbed.events import (
    EVENTS,
    EVENTS_FILE,
    RunEvents,
    events_of_run,
    measure_beside,
    request_of,
    write_events,
)
from traincast.testbed.folder import ROW, SPAN_COLUMNS, RankPlace, RunFolder, read_run_folder, read_spans, write_row
from traincast.testbed.network import NodeNetwork, loopback, shaped
from traincast.testbed.rank.launch import launch
from traincast.testbed.rank.recorder import SpanRow
from traincast.testbed.request import LOOPBACK, RunRequest, rate_of
from traincast.testbed.sampling import RESOURCES, RankSampler, write_readings
from traincast.testbed.setup import RUNTIME, ask_of, lowered_of
from traincast.testbed.trace import write_measured_trace
from traincast.units import format_bytes

CLUSTER: Final = "cluster.toml"
_LOOPBACK_RATE: Final = 1.2e9
"""Bytes/s that a forecast without measured events assumes of the loopback interface."""
_LATENCY_S: Final = 60e-6
_START_S: Final = 120.0
"""Seconds that the ranks may take to start."""
_SLOWEST_STEP_S: Final = 120.0
_CLEARLY: Final = 0.5
_PROCESS_BYTES: Final = 0.5e9
"""What a process with PyTorch takes before it has a model."""
_RANKS_PER_CORE: Final = 3
"""More ranks with emulated compute do not wake up in time."""
_MOST_LOST: Final = 0.03
"""Share of a step by which hosts may delay their emulated devices."""
_MOST_WAITED: Final = 0.1
"""Share of a step for which a rank with real compute may wait for a core."""
_MOST_NOISE: Final = 0.1
"""Spread of the steps, as a share of their mean, up to which they tell anything about a forecast."""


@verb(RunAsk)
def run_testbed(ask: RunAsk) -> RunFolder:
    """Train a model on this machine with several processes, and write a folder with what every rank did.

    This is ``traincast testbed run``. ``compute`` is ``real`` or a device to emulate. ``network`` is ``loopback`` or
    the rate of every rank's link, such as ``1Gbit`` (needs root); ``link={3: "200Mbit"}`` gives rank 3 another rate,
    and ``slow={3: 1.5}`` makes it compute 1.5 times slower. ``monitor`` is how often per second devices, networks and
    processes are sampled. With ``events``, the ranks measure the works of their plan between the steps, and a
    comparison forecasts the run from them.
    """
    check_folder(Path(ask.output))
    if ask.network == LOOPBACK and ask.link:
        rank, rate = next(iter(ask.link.items()))
        raise RequestError(f"link {rank}={rate} on loopback: give the rate of the other links as network")
    rates = tuple((rank, rate_of(rate, "link")) for rank, rate in (ask.link or {}).items())
    request = RunRequest(
        model=ask.model, ranks=ask.ranks, strategy=ask.strategy, global_batch=ask.global_batch, seq=ask.seq,
        compute=ask.compute, network=ask.network, link_rates=rates, slow=tuple((ask.slow or {}).items()),
        steps=ask.steps, warmup=ask.warmup, threads=ask.threads, monitor_hz=ask.monitor, events=ask.events,
    )  # fmt: skip
    return run(request, Path(ask.output), progress=ask.progress)


def run(
    request: RunRequest,
    output: Path,
    *,
    progress: Progress | None = None,
    start: Starter = start_program,
    traced: bool = True,
    place: SharedPlace | None = None,
) -> RunFolder:
    """Train as ``request`` says and write the folder ``output``; returns what its ``run.json`` says.

    ``start`` starts the process of a rank; by default it is a program of its own. ``traced`` says whether the folder
    gets a trace. ``place`` is where the ranks run beside those of other runs; by default they have their own network.
    Raises ``RequestError`` before anything runs if the model, the strategy or the network cannot be run here, or if
    memory does not suffice.
    """
    require_torch()
    check_folder(output)
    with tempfile.TemporaryDirectory(prefix="traincast-testbed-") as scratch:
        folder_of_ranks = Path(scratch)
        write_text(folder_of_ranks / CLUSTER, cluster_text(request))
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        servers = stated_strategy(ask_of(request, folder_of_ranks / CLUSTER)).servers
        _check_memory(request, folder_of_ranks / CLUSTER, servers=servers)
        measured = (_train_with_servers if servers else _train)(request, folder_of_ranks, _Launching(start, place))
        events = folder_of_ranks / EVENTS
        if request.events and measured.events is not None:
            write_events(measured.events, measured.facts, events, rates=rates_of(request))
        elif request.events:
            measure_beside(request, folder_of_ranks / CLUSTER, events)
        if progress is not None:
            progress(request.steps, request.steps)
        folder = _described(request, measured, started=started)
        make_folder(output)
        if measured.sampler is not None:
            write_readings(measured.sampler.readings, output / RESOURCES, windows=measured.windows)
        write_text(output / CLUSTER, cluster_text(request))
        _write_spans(measured.rows, output / "spans.parquet")
        write_row(folder, output / ROW)
        if traced:
            _write_trace(folder, output)
        if request.events:
            write_folder(output / EVENTS, {file.name: file.read_bytes() for file in events.iterdir()})
        write_json(output / "run.json", folder.to_dict())  # last: a folder with it is complete
    return read_run_folder(output)


def _check_memory(request: RunRequest, cluster: Path, *, servers: int) -> None:
    """Refuse a run that needs more memory than is free."""
    need, free = memory_of_run(request, cluster, servers=servers), free_memory("cpu")
    if need > free:
        told = "" if request.emulated else ", or emulated compute (--compute DEVICE)"
        raise RequestError(
            f"{request.model} on {request.ranks} ranks needs about {format_bytes(need)} of memory, but "
            f"{format_bytes(free)} are free: use a smaller model or batch, fewer ranks{told}"
        )


def memory_of_run(request: RunRequest, cluster: Path, *, servers: int = 0) -> float:
    """Return roughly the bytes that all processes of a run need.

    Every rank makes the weights of the whole model before it keeps its part; replicas have buckets as large. Emulated
    operators need no memory. Real ones need what the forecast says and, if events are measured, a second model.
    """
    graph = load_model(request.model, seq=request.seq, use_cache=True)
    weights = 4.0 * graph.num_parameters
    rank = _PROCESS_BYTES + 2.0 * weights
    if not request.emulated and not servers:
        lowered = lowered_of(request, cluster)
        rank += max(memory.total for memory in lowered.memory)
        if request.events:
            from traincast.profiling.events.worker import step_memory

            asked = request_of(replace(request, strategy=lowered.request.strategy.complete_text), cluster)
            rank += step_memory(needed_works(asked))
    return (request.ranks + servers) * rank


def _write_trace(folder: RunFolder, output: Path) -> None:
    about = {"model": folder.model, "strategy": folder.strategy, "compute": folder.compute}
    write_measured_trace(read_spans(output), output / "trace.json.gz", steps_s=folder.steps_s, about=about)


class _Measured(NamedTuple):
    """What the processes of a run measured; ``rows`` are those of its table of spans.

    ``windows`` are the times in which steps ran without a gap. ``facts`` are what each rank measured of ``events``.
    """

    strategy: str
    step_s: float
    steps_s: list[float]
    rows: list[list[Any]]
    windows: list[tuple[float, float]]
    sampler: RankSampler | None
    warnings: list[str]
    waited_share: float = 0.0
    lost_share: float = 0.0
    disturbed_steps: int = 0
    events: RunEvents | None = None
    facts: Sequence[Mapping[str, Any]] = ()


class SharedPlace(NamedTuple):
    """A network that several runs use: the node for each node of a run, and a port that no other run has."""

    network: NodeNetwork
    nodes: Sequence[int]
    port: int


class _Launching(NamedTuple):
    """How and where ranks start, if not as programs in a network of their own."""

    start: Starter
    shared: SharedPlace | None


def _train(request: RunRequest, place: Path, launching: _Launching) -> _Measured:
    """Train with one process for each rank; ``place`` is a folder for what they write."""
    request = replace(request, strategy=lowered_of(request, place / CLUSTER).request.strategy.complete_text)
    events = events_of_run(request, place / CLUSTER) if request.events else None
    if events is not None:
        write_text(place / EVENTS_FILE, events.to_json())
    sampler, warnings = _launched("worker", request, place, nodes=range(request.ranks), launching=launching)
    ranks = [json.loads((place / f"rank{rank}.json").read_text()) for rank in range(request.ranks)]
    first = ranks[0]  # all ranks have agreed on what follows
    ends = [max(rank["times"][step][1] for rank in ranks) for step in range(len(first["times"]))]
    starts = [0.0, *ends[:-1]] if request.back_to_back else [start for start, _ in first["times"]]
    windows = [(starts[step], ends[step]) for step in first["counted"]]
    seconds = [end - begin for begin, end in windows]
    ran = sorted({name for rank in ranks for name in rank["ran"]})
    if ran:
        warnings.append(f"{', '.join(ran)} really ran: the testbed cannot emulate them")
    warnings += [warning for rank in ranks[:1] for warning in rank["events"]["warnings"]]

    def mean(name: str) -> float:
        return statistics.fmean(max(rank[name][step - request.warmup] for rank in ranks) for step in first["counted"])

    return _Measured(
        strategy=request.strategy,
        step_s=statistics.fmean(seconds),
        steps_s=seconds,
        rows=_rows(ranks, first["counted"]),
        windows=_joined(windows),
        sampler=sampler,
        warnings=warnings,
        waited_share=mean("waited"),
        lost_share=mean("lost"),
        disturbed_steps=len(first["waited"]) - len(seconds),
        events=events,
        facts=[rank["events"] for rank in ranks],
    )


def _joined(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join windows that follow one another without a gap."""
    starts = [start for n, (start, _) in enumerate(windows) if not n or start > windows[n - 1][1]]
    ends = [end for n, (_, end) in enumerate(windows) if n + 1 == len(windows) or windows[n + 1][0] > end]
    return list(zip(starts, ends, strict=True))


def _train_with_servers(request: RunRequest, place: Path, launching: _Launching) -> _Measured:
    """Train with one process for each worker and each parameter server."""
    from traincast.testbed.parallel.servers import ServerSpan, nodes_of
    from traincast.testbed.rank.serving import served, server_job, window_of

    job = server_job(request, place / CLUSTER)
    nodes = nodes_of(job.setup)
    sampler, warnings = _launched("serving", request, place, nodes=nodes, launching=launching)
    spans = [
        ServerSpan(*span)
        for rank in range(len(nodes))
        for span in json.loads((place / f"rank{rank}.json").read_text(encoding="utf-8"))
    ]
    step_s, seconds, rows = served(job, spans, warmup=request.warmup)
    windows = [window_of(spans, warmup=request.warmup)]
    return _Measured(request.strategy, step_s, seconds, rows, windows, sampler, warnings)


def _launched(
    module: str, request: RunRequest, place: Path, *, nodes: Sequence[int], launching: _Launching
) -> tuple[RankSampler | None, list[str]]:
    """Run ``module`` of this package in one process for each entry of ``nodes``.

    Returns the sampler, if the request has one, and warnings of the network.
    """
    write_text(place / "request.json", request.to_json())
    command = [sys.executable, "-m", f"traincast.testbed.rank.{module}", str(place / "request.json"), str(place)]
    environment = {"OMP_NUM_THREADS": str(request.threads)}
    with ExitStack() as stack:
        start, shared = launching
        if shared is None:
            shared = SharedPlace(stack.enter_context(network_of(request, max(nodes) + 1)), range(max(nodes) + 1), 0)
        sampler = None
        if request.monitor_hz is not None:
            devices = stack.enter_context(counters())
            environment[DEVICES] = str(devices)
            sampler = RankSampler(
                request.monitor_hz, devices, urgent=request.emulated, on_loopback=not shared.network.is_shaped
            )
        launch(
            [command] * len(nodes),
            shared.network,
            nodes=[shared.nodes[node] for node in nodes],
            port=shared.port or None,
            environment=environment,
            urgent=request.emulated,
            timeout_s=_START_S + _SLOWEST_STEP_S * (request.warmup + request.steps),
            watching=None if sampler is None else sampler.watching,
            start=start,
        )
        return sampler, list(shared.network.warnings)


@contextmanager
def network_of(request: RunRequest, num_nodes: int) -> Iterator[NodeNetwork]:
    """The network of a request: one node for each rank, then those of servers that have nodes of their own."""
    rates = rates_of(request)
    own = [] if rates is None else [request.rate] * (num_nodes - len(rates))
    with loopback(num_nodes) if rates is None else shaped([*rates, *own]) as network:
        yield network


def rates_of(request: RunRequest) -> list[float] | None:
    """The rate of each rank's link in bytes/s, or ``None`` on loopback."""
    if request.network == LOOPBACK:
        if request.link_rates:
            raise RequestError("link rates on loopback: give the rate of the other links as the network")
        return None
    given = dict(request.link_rates)
    return [given.get(rank, request.rate) for rank in range(request.ranks)]


def cluster_text(request: RunRequest) -> str:
    """The cluster file of a request: one node for each rank."""
    device = "cpu" if not request.emulated else load_device(request.compute).name
    rates = rates_of(request) or [_LOOPBACK_RATE] * request.ranks
    lines = [
        "[node]",
        f'device = "{device}"',
        "devices_per_node = 1",
        'intra_topology = "none"',
        f'intra_node = {{ name = "memory", bandwidth = {_LOOPBACK_RATE}, latency_s = {_LATENCY_S} }}',
        "nics_per_node = 1",
        f'inter_node = {{ name = "{request.network}", bandwidth = {min(rates)}, latency_s = {_LATENCY_S} }}',
        'inter_topology = "none"',
        "launch_s = 0.0",
        "",
        "[cluster]",
        'name = "testbed"',
        f"num_nodes = {request.ranks}",
    ]
    if len(set(rates)) > 1:
        lines.append(f"link_rates = {rates}")
    return "\n".join(lines) + "\n"


def _cannot_carry(request: RunRequest, measured: _Measured, *, cores: int) -> str:
    """Why the steps of a run say nothing about a forecast: this machine could not carry it. Empty if it could."""
    seconds = measured.steps_s
    noise = statistics.stdev(seconds) / statistics.fmean(seconds) if len(seconds) > 1 else 0.0
    threads = request.ranks * request.threads
    if request.emulated and request.ranks > _RANKS_PER_CORE * cores:
        return (
            f"{request.ranks} ranks on {cores} cores: more than {_RANKS_PER_CORE} for each core do not wake up in "
            f"time; use at most {_RANKS_PER_CORE * cores} ranks"
        )
    if not request.emulated and threads > cores:
        return (
            f"{threads} threads of {request.ranks} ranks on {cores} cores: real compute needs a core for each; "
            "use fewer ranks, or emulated compute (--compute DEVICE)"
        )
    if measured.lost_share > _MOST_LOST:
        return (
            f"hosts delayed their emulated devices by {measured.lost_share:.1%} of a step, more than {_MOST_LOST:.0%}: "
            "use a larger batch or a slower device"
        )
    if not request.emulated and measured.waited_share > _MOST_WAITED:
        return (
            f"ranks waited for a core for {measured.waited_share:.0%} of a step, more than {_MOST_WAITED:.0%}: "
            "run it when other programs leave the cores alone"
        )
    if noise > _MOST_NOISE:
        return f"steps vary by {noise:.0%}, more than {_MOST_NOISE:.0%}: run it again on a quiet machine"
    return ""


def _described(request: RunRequest, measured: _Measured, *, started: str) -> RunFolder:
    import torch

    seconds, mean = measured.steps_s, statistics.fmean(measured.steps_s)
    rates, sampler = rates_of(request), measured.sampler
    return RunFolder(
        model=request.model,
        strategy=measured.strategy,
        ranks=tuple(
            RankPlace(
                rank=rank,
                node=rank,
                device=request.compute if request.emulated else "cpu",
                factor=request.factor(rank),
                rate=None if rates is None else rates[rank],
            )
            for rank in range(request.ranks)
        ),
        num_ranks=request.ranks,
        global_batch=request.global_batch,
        precision="fp32",
        compute=request.compute,
        network=request.network,
        runtime=RUNTIME,
        step_s=measured.step_s,
        steps_s=tuple(seconds),
        repeat_cv=statistics.stdev(seconds) / mean if len(seconds) > 1 else 0.0,
        seq=request.seq,
        cluster=CLUSTER,
        started=started,
        torch=str(torch.__version__),
        monitor_hz=request.monitor_hz,
        windows_s=() if sampler is None else tuple(measured.windows),
        sampler_cpu_share=None if sampler is None else sampler.sampler_s / sampler.sampled_s,
        warnings=tuple(measured.warnings),
        waited_share=measured.waited_share,
        lost_share=measured.lost_share,
        disturbed_steps=measured.disturbed_steps,
        cannot_carry=_cannot_carry(request, measured, cores=len(os.sched_getaffinity(0))),
    )


def _rows(ranks: Sequence[Mapping[str, Any]], counted: Sequence[int]) -> list[list[Any]]:
    """The spans of all ranks as rows; steps are numbered as counted, and times are since the common start of a step."""
    rows: list[list[Any]] = []
    messages: defaultdict[tuple[int, int, int], dict[str, list[SpanRow]]] = defaultdict(
        lambda: {"send": [], "receive": []}
    )
    starts = [start for start, _ in ranks[0]["times"]]
    number_of = {step: number for number, step in enumerate(counted)}
    for rank in ranks:
        number = rank["rank"]
        for values in rank["rows"]:
            row = SpanRow(*values)
            if row.category != "message":
                rows.append(row.columns(number, step=number_of[row.step], start=starts[row.step]))
                continue
            pair = (number, row.peer) if row.name == "send" else (row.peer, number)
            messages[row.step, *pair][row.name].append(row)
    moved = {pair: _messages(sides["send"], sides["receive"]) for pair, sides in messages.items()}
    for (step, sender, receiver), sent in moved.items():
        back = moved.get((step, receiver, sender), [])
        rows += [_after_others(row, back).columns(sender, step=number_of[step], start=starts[step]) for row in sent]
    return rows


def _messages(sends: list[SpanRow], receives: list[SpanRow]) -> list[SpanRow]:
    """The messages of one direction of a pair of ranks: bytes move once the receive is posted, until it ends."""
    found = []
    for sent, received in zip(
        *(sorted(rows, key=lambda row: row.microbatch) for rows in (sends, receives)), strict=True
    ):
        begin = max(sent.start_s, received.start_s)
        end = max(begin, received.end_s)
        found.append(sent._replace(category="communication", microbatch=-1, start_s=begin, end_s=end, name=sent.label))
    return found


def _after_others(row: SpanRow, back: list[SpanRow]) -> SpanRow:
    """A message that waited behind one of the other direction begins when that one has ended.

    It did wait if it ended clearly later, though both could have begun together: gloo asks for the bytes of a message
    by the connection on which it sends those of the other.
    """
    before = [
        other.end_s
        for other in back
        if other.start_s < row.end_s
        and row.start_s < other.end_s < row.end_s
        and row.end_s - other.end_s > _CLEARLY * (other.end_s - other.start_s)
    ]
    return row._replace(start_s=max([row.start_s, *before]))


def _write_spans(rows: list[list[Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows.sort(key=lambda row: (row[0], row[1], row[7]))
    types = [pa.int32(), pa.int32(), pa.int32(), *[pa.string()] * 4, *[pa.float64()] * 3]
    table = pa.table(
        {
            name: pa.array([row[n] for row in rows], kind)
            for n, (name, kind) in enumerate(zip(SPAN_COLUMNS, types, strict=True))
        }
    )
    with writing(path) as out:
        pq.write_table(table, out)
