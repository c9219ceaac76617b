"""``traincast testbed compare``: forecasts a run of the testbed, and puts the forecast beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from traincast.ask import Ask, Conditions, verb
from traincast.cluster import load_cluster
from traincast.errors import FileFormatError, RequestError
from traincast.estimate import CostModel
from traincast.files import check_outputs
from traincast.forecast import Forecast, default_cost_model, predict
from traincast.simulate.servers import measure
from traincast.strategy import load_runtime
from traincast.testbed.activity import (
    ActivitySpans,
    activities,
    aligned,
    blocking_classes,
    groups_of,
    predicted_spans,
    without_waiting,
)
from traincast.testbed.ask import CompareAsk
from traincast.testbed.events import EVENTS
from traincast.testbed.folder import RunFolder, measured_spans, read_run_folder, read_spans
from traincast.testbed.outcome import ClassActivity, Comparison, DeviceActivity
from traincast.testbed.page import Compared, write_comparison

_SAME_FACTOR: Final = 1e-9


@verb(CompareAsk)
def compare_testbed(ask: CompareAsk) -> Comparison:
    """Forecast the run in the folder ``run``, and compare step time and activities device by device.

    This is ``traincast testbed compare``. ``events`` is a folder that ``profile events`` wrote; if omitted, the events
    that the run measured are used. ``html`` is where a page with both timelines is written.
    """
    folder = Path(ask.run)
    if ask.html is not None:
        inputs = {name: folder / name for name in ("run.json", "spans.parquet", "cluster.toml")}
        check_outputs({"html": Path(ask.html)}, inputs=inputs)
    if ask.events is not None and not Path(ask.events).is_dir():
        raise RequestError(f"events {ask.events}: there is no such folder; `traincast profile events -o` writes one")
    found = compare(folder, events=None if ask.events is None else Path(ask.events))
    if ask.html is not None:
        write_comparison(found, Path(ask.html))
    return found.comparison


def compare(run: Path, *, events: Path | None = None) -> Compared:
    """Forecast the run in the folder ``run`` and compare the two.

    The forecast has the model, cluster, strategy, runtime and precision of the run. Its times come from ``events``, by
    default from the folder ``events`` of the run. If there is none, they come from bundles and physics, with a warning.
    """
    record = read_run_folder(run)
    measured, waits = measured_spans(read_spans(run), str(run / "spans.parquet"))
    if not len(measured):
        raise FileFormatError(f"{run / 'spans.parquet'} has no spans: run `traincast testbed run` again")
    chosen, cost_model = cost_model_of(run, record, events=events)
    forecast = forecast_of(run, record, cost_model=cost_model)
    timeline = forecast.detailed(all_ranks=True)
    predicted = predicted_spans(timeline)
    strategy = forecast.request.strategy
    measured = without_waiting(measured, waits, blocking_classes(predicted))
    real = aligned(measured, groups_of(timeline))
    scale: dict[int, float] = {}
    if strategy.servers:
        real, predicted = _from_first_forward(real), _from_first_forward(predicted)
    if strategy.asynchronous:
        real, predicted = (_of_workers(spans, record.num_ranks) for spans in (real, predicted))
        scale = _steps_in_window(forecast)
    devices = activities(
        real,
        predicted,
        step_s=record.step_s,
        servers=bool(strategy.servers),
        synchronous=not strategy.asynchronous,
        scale=scale,
        predicted_s=forecast.report.step_s,
    )
    comparison = Comparison(
        model=record.model,
        strategy=forecast.report.strategy,
        num_ranks=record.num_ranks,
        compute=record.compute,
        network=record.network,
        measured_s=record.step_s,
        predicted_s=forecast.report.step_s,
        num_steps=len(record.steps_s),
        repeat_cv=record.repeat_cv,
        lost_share=record.lost_share,
        cannot_carry=record.cannot_carry,
        by_device=devices,
        events=None if chosen is None else str(chosen),
        estimated_by=dict(forecast.report.estimated_by),
        warnings=_warnings(record, forecast, chosen, devices),
    )
    return Compared(comparison=comparison, run=record, measured=real, predicted=predicted, forecast=forecast)


def forecast_of(run: Path, record: RunFolder, *, cost_model: CostModel | None = None) -> Forecast:
    """Return the forecast of the run in the folder ``run``; ranks with a factor compute that many times slower."""
    return predict(replace(ask_of_run(run, record), cost_model=cost_model))


def ask_of_run(run: Path, record: RunFolder) -> Ask:
    """Return what the run in the folder ``run`` trained, as ``predict`` is asked for it."""
    slow = tuple((place.rank, place.factor) for place in record.ranks if abs(place.factor - 1.0) > _SAME_FACTOR)
    return Ask(
        record.model,
        cluster=load_cluster(str(run / record.cluster), hosts=True),
        global_batch=record.global_batch,
        strategy=record.strategy or None,
        seq=record.seq,
        precision=record.precision,
        runtime=record.runtime,
        conditions=Conditions(slow=slow) if slow else None,
        use_cache=True,
    )


def cost_model_of(run: Path, record: RunFolder, *, events: Path | None) -> tuple[Path | None, CostModel | None]:
    """Return the folder of the events that a forecast of ``run`` uses, and their cost model.

    The folder is ``events``, by default the folder ``events`` of the run; both are ``None`` if there is none.
    """
    chosen = events if events is not None else run / EVENTS if (run / EVENTS).is_dir() else None
    if chosen is None:
        return None, None
    from traincast.estimate.events.model import EventsCostModel, read_events

    return chosen, EventsCostModel(
        read_events(chosen), default_cost_model(load_runtime(record.runtime).kernels.measured_with)
    )


def _from_first_forward(spans: ActivitySpans) -> ActivitySpans:
    """Return spans whose times count from the first forward of any worker."""
    forward = spans.kind == spans.classes.index("forward") if "forward" in spans.classes else np.zeros(0, dtype=bool)
    zero = np.zeros(len(spans))
    for step in np.unique(spans.step).tolist():
        own = forward & (spans.step == step)
        if own.any():
            zero[spans.step == step] = spans.start[own].min()
    return replace(spans, start=spans.start - zero, end=spans.end - zero)


def _of_workers(spans: ActivitySpans, workers: int) -> ActivitySpans:
    return spans.taken(spans.rank < workers)


def _steps_in_window(forecast: Forecast) -> dict[int, float]:
    """Return, for each asynchronous worker, the factor from its busy time in the forecast's window to that of a step.

    The window is one step of the slowest worker, in which a worker that is twice as fast makes two steps.
    """
    assert forecast.servers is not None
    job = forecast.servers
    rates = measure(job.setup, job.run).steps_per_s_by_worker
    return {worker: rates[job.slowest] / rate for worker, rate in enumerate(rates)}


def _warnings(
    record: RunFolder, forecast: Forecast, events: Path | None, devices: tuple[DeviceActivity, ...]
) -> tuple[str, ...]:
    found = list(record.warnings)
    if events is None:
        found.append("no events were given: the times of the forecast come from bundles and physics")
    if forecast.request.strategy.asynchronous:
        found.append("asynchronous workers have no common start: only busy times of the workers are compared")
    missing: dict[tuple[str, str], list[int]] = {}
    for device in devices:
        for each in device.classes:
            side = _side(each)
            if side:
                missing.setdefault((each.name, side), []).append(device.rank)
    for (name, side), ranks in missing.items():
        shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
        found.append(f"{name} of rank{'s' if len(ranks) > 1 else ''} {shown} is only {side}")
    return tuple(found)


def _side(each: ClassActivity) -> str:
    return "in the forecast" if each.measured is None else "in the run" if each.predicted is None else ""
