"""What users ask of profiler traces: ``traincast.trace``, with one function for each verb of ``traincast trace``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traincast.ask import File, Files, paths_of, verb
from traincast.cluster import load_cluster
from traincast.cluster.catalog import load_device
from traincast.cluster.hardware import Device
from traincast.errors import FileFormatError, RequestError
from traincast.files import check_folder, check_output, write_text
from traincast.traces.ask import DiffAsk, LearnAsk, ReplayAsk, ShowAsk, TraceChangesAsk
from traincast.traces.changes.change import TraceChange
from traincast.traces.changes.device import Buckets, HalfPrecision, OtherDevice
from traincast.traces.changes.hosts import (
    FasterHost,
    FasterNetwork,
    FusedOptimizer,
    GraphLaunch,
    LoaderWorkers,
    NoCommunication,
    Overlapped,
)
from traincast.traces.diff import TraceDiff, compare_forecast, compare_traces, diff_page
from traincast.traces.files.chakra import SUFFIX, chakra_files, read_chakra, write_chakra
from traincast.traces.files.execution import with_execution, with_executions_beside
from traincast.traces.files.load import SUFFIXES, load_jobs, load_traces
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.learn import LearnedEvents, check_events_folder, learn, write_events
from traincast.traces.operators.precision import precision_of
from traincast.traces.recording.couple import couple
from traincast.traces.recording.record import record
from traincast.traces.recording.recording import Recording
from traincast.traces.replay import Replayed, ReplayReport, replay, run
from traincast.traces.show import TraceSummary, device_of, summarize_traces
from traincast.traces.whatif import WhatIfAnswer
from traincast.traces.whatif import ask as answer_of
from traincast.units import parse_bytes

if TYPE_CHECKING:
    from traincast.forecast import Forecast

_FACTOR: Final = re.compile(r"^\d+(?:\.\d+)?x$")
_MOST_STEPS: Final = 1_000_000


class TraceVerbs:
    """Explains, replays, changes and compares traces of PyTorch's profiler, and learns from them.

    ``traincast.trace`` is the one object of this class. Each method is the verb of the same name of ``traincast
    trace``, with the same arguments. ``traces`` is a file (``.json``, ``.json.gz``), a folder with one file for each
    rank, or a list of these. ``range`` names the ranges that are steps; by default, these are the profiler's own.
    ``to_dict`` of a result is the JSON that the command prints.

    >>> from traincast import trace
    >>> trace.show("trace.json.gz").breakdown  # doctest: +SKIP
    >>> trace.whatif("trace.json.gz", host="2x").step_s  # doctest: +SKIP
    """

    @verb(ShowAsk)
    @staticmethod
    def show(ask: ShowAsk) -> TraceSummary:
        """Return what traces hold: steps, where the time went, the critical path, operators, and what is missing."""
        return summarize_traces(_loaded(ask.traces, ask.execution_trace), named=ask.range)

    @verb(ReplayAsk)
    @staticmethod
    def replay(ask: ReplayAsk) -> ReplayReport:
        """Run traces as a plan with unchanged durations, and compare the result with what was recorded."""
        if ask.fit_steps not in (None, "even", "odd"):
            raise RequestError(f"fit_steps {ask.fit_steps!r}: expected even or odd")
        _check_output(ask.output, ask.traces)
        recording = _recorded(ask.traces, ask.range, fit=ask.fit_steps)
        _check_output(ask.output, ask.traces, recording)
        report = replay(recording)
        if ask.output is not None:
            _write(run(recording), Path(ask.output))
        return report

    @verb(TraceChangesAsk)
    @staticmethod
    def whatif(ask: TraceChangesAsk) -> WhatIfAnswer:
        """Change what traces recorded, run them again, and return the new time per step, or why there is none.

        ``host`` and ``network`` are factors (``"2x"`` or 2.0: twice as fast), ``bucket`` a size (``"100MB"``, or
        bytes), ``gpu`` a device of the catalog, ``loader_workers`` a number of processes.
        """
        changes = _changes(ask)
        if not changes:
            raise RequestError("nothing is changed: give --host 2x, --network 2x, --gpu DEVICE or another change")
        _check_output(ask.output, ask.traces)
        recording = _recorded(ask.traces, ask.range, execution=ask.execution_trace)
        _check_output(ask.output, ask.traces, recording)
        answer = answer_of(recording, changes)
        if ask.output is not None and answer.replayed is not None:
            _write(answer.replayed, Path(ask.output))
        return answer

    @verb(DiffAsk)
    @staticmethod
    def diff(ask: DiffAsk) -> TraceDiff:
        """Compare two traces, or a trace with the forecast of a model: step, parts and operators.

        ``forecast`` is the model; ``cluster`` and ``global_batch`` are those of the recorded run. ``precision`` is that
        of the trace, if it can be told and is not given. ``html``: write the comparison to this file as a page.
        """
        if (ask.after is None) == (ask.forecast is None):
            raise RequestError("a comparison needs two traces, or one trace and --forecast MODEL")
        if ask.html is not None:
            check_output(Path(ask.html), inputs=_inputs([*paths_of(ask.before), *paths_of(ask.after or ())]))
        if ask.after is not None:
            found = compare_traces(_loaded(ask.before), _loaded(ask.after), named=ask.range)
        else:
            if ask.forecast is None or ask.cluster is None or ask.global_batch is None:
                raise RequestError("--forecast needs --cluster and --global-batch: with which the trace was recorded")
            from traincast.forecast import predict

            trace = _loaded(ask.before)[0]
            told = precision_of(trace)
            predicted = predict(
                ask.forecast,
                cluster=load_cluster(ask.cluster) if isinstance(ask.cluster, str) else ask.cluster,
                global_batch=ask.global_batch,
                strategy=ask.strategy,
                seq=ask.seq,
                precision=ask.precision or told,
            )
            notes = _differences(trace, predicted, told=told, stated=ask.precision)
            found = compare_forecast(trace, predicted.detailed(), named=ask.range, notes=notes)
        if ask.html is not None:
            write_text(Path(ask.html), diff_page(found))
        return found

    @verb(LearnAsk)
    @staticmethod
    def learn(ask: LearnAsk) -> LearnedEvents:
        """Turn measured operators, launches and collectives into events that forecasts use.

        Files of the same rank are repeats, or runs of other batch sizes. ``device`` says where they were recorded if
        they do not. ``output``: write the events to this folder, for ``predict --events``. A folder that holds anything
        else, or events of another device, precision or origin, is refused.
        """
        if ask.output is not None:
            check_folder(Path(ask.output))
            check_events_folder(Path(ask.output))
        ran_on = load_device(ask.device) if isinstance(ask.device, str) else ask.device
        if paths_of(ask.execution_trace):
            jobs = [_loaded(ask.traces, ask.execution_trace)]
        else:
            jobs = [with_executions_beside(job) for job in load_jobs(paths_of(ask.traces))]
        learned = learn(jobs, named=ask.range, device=ran_on)
        if ask.output is not None:
            write_events(learned, Path(ask.output))
        return learned


trace: Final = TraceVerbs()
"""The verbs of ``traincast trace``."""


def _changes(ask: TraceChangesAsk) -> list[TraceChange]:
    """Return the changes that are asked for, in the order in which they are made."""
    changes: list[TraceChange] = []
    if ask.gpu is not None:
        from traincast.forecast import default_cost_model

        device = ask.gpu if isinstance(ask.gpu, Device) else load_device(ask.gpu)
        changes.append(OtherDevice(device, default_cost_model("pytorch")))
    if ask.amp:
        changes.append(HalfPrecision())
    if ask.fuse_optimizer:
        changes.append(FusedOptimizer())
    if ask.bucket is not None:
        changes.append(Buckets(_size(ask.bucket)))
    if ask.network is not None:
        changes.append(FasterNetwork(_factor(ask.network, "--network")))
    if ask.no_communication:
        changes.append(NoCommunication())
    if ask.overlap:
        changes.append(Overlapped())
    if ask.loader_workers is not None:
        if isinstance(ask.loader_workers, bool) or ask.loader_workers < 1:
            raise RequestError(f"--loader-workers {ask.loader_workers}: expected a whole number of 1 or more")
        changes.append(LoaderWorkers(ask.loader_workers))
    if ask.graph:
        changes.append(GraphLaunch())
    if ask.host is not None:
        changes.append(FasterHost(_factor(ask.host, "--host")))
    return changes


def _inputs(paths: Sequence[Path]) -> dict[str, Path]:
    return {f"trace {path}": path for path in paths}


def _loaded(traces: Files, execution: Files | None = None) -> list[ProfilerTrace]:
    """Return the traces; with shapes of these execution traces, or, if none are named, of those beside them."""
    found = load_traces(paths_of(traces))
    if execution is None:
        return found
    named = paths_of(execution)
    return with_execution(found, named) if named else with_executions_beside(found)


def _recorded(traces: Files, named: str | None, *, fit: str | None = None, execution: Files | None = None) -> Recording:
    """Return the recording of all ranks."""
    paths = paths_of(traces)
    if paths and all(path.name.endswith(SUFFIX) for path in paths):
        if execution is not None and paths_of(execution):
            raise RequestError("--execution-trace is for the profiler's traces: Chakra's have no operators with shapes")
        return couple([read_chakra(path) for path in paths])
    parity = None if fit is None else range(0 if fit == "even" else 1, _MOST_STEPS, 2)
    return couple([record(one, named=named, fit=parity) for one in _loaded(paths, execution)])


def _check_output(output: File | None, traces: Files, recording: Recording | None = None) -> None:
    """Refuse an output that cannot be written, is one of the traces, or has a name that says no known format.

    The number of ranks decides between a file and a folder; without a ``recording`` it is known of a single file only.
    """
    if output is None:
        return
    path, paths = Path(output), paths_of(traces)
    alone = len(recording.traces) == 1 if recording is not None else len(paths) == 1 and not paths[0].is_dir()
    if path.name.endswith(SUFFIX):
        for file in chakra_files(recording, path) if recording is not None else [path]:
            check_output(file, inputs=_inputs(paths))
        return
    if alone and not path.name.endswith(SUFFIXES):
        raise FileFormatError(f"cannot write {path}: expected a name that ends in .json, .json.gz, or .et for Chakra")
    if recording is not None and not alone and path.name.endswith(SUFFIXES):
        raise FileFormatError(
            f"cannot write {path}: there are {len(recording.traces)} ranks; give the name of a folder"
        )
    check_output(path, inputs=_inputs(paths))


def _write(replayed: Replayed, path: Path) -> None:
    """Write a trace that has run: as Chakra's if the name ends in .et, else as the profiler's."""
    from traincast.traces.files.write import write_timeline

    if path.name.endswith(SUFFIX):
        write_chakra(replayed, path)
    else:
        write_timeline(replayed, path)


def _factor(given: str | float, option: str) -> float:
    """Return the number of ``2x``, or of 2.0."""
    if isinstance(given, str):
        value = float(given[:-1]) if _FACTOR.match(given) else 0.0
    else:
        value = 0.0 if isinstance(given, bool) else float(given)
    if not 0.0 < value < float("inf"):
        raise RequestError(f"{option} {given}: expected a factor such as 2x or 0.5x")
    return value


def _size(given: str | float) -> float:
    """Return the bytes of ``100MB``, or of a number of bytes."""
    if isinstance(given, str):
        return parse_bytes(given, what="--bucket")
    if isinstance(given, bool) or not 0.0 < given < float("inf"):
        raise RequestError(f"--bucket {given}: expected a number of bytes above 0")
    return float(given)


def _differences(trace: ProfilerTrace, predicted: Forecast, *, told: str | None, stated: str | None) -> list[str]:
    """Return what differs between the recorded run and the forecast one, or was assumed to be the same."""
    request = predicted.request
    used = request.precision.name
    if stated is None and told is not None:
        notes = [f"the forecast computes in {used}, as the trace does"]
    elif told is None:
        notes = [f"the trace does not tell its precision: the forecast computes in {used}"]
    else:
        same = told == used
        notes = [] if same else [f"the trace computes in {told}, the forecast in {used}: they are not the same work"]
    device = device_of(trace)
    if device is not None and device.name != request.cluster.device.name:
        notes.append(f"the devices differ: {device.name} in the trace, {request.cluster.device.name} in the forecast")
    ranks = request.cluster.num_devices
    if trace.world_size > 1 and trace.world_size != ranks:
        notes.append(f"the numbers of ranks differ: {trace.world_size} in the trace, {ranks} in the forecast")
    return notes
