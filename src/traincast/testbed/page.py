"""Writes the page of a comparison: a run and its forecast over one another, in one HTML file that loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.files import write_text
from traincast.forecast import Forecast
from traincast.pages import page_text
from traincast.report.drawn_spans import MAX_SPANS, DrawnSpans, columns_of
from traincast.report.trace import STREAM_NAMES
from traincast.strategy.plan import NUM_STREAMS, Category, Stream
from traincast.testbed.activity import COMPUTE_CLASSES, ActivitySpans, stream_of
from traincast.testbed.folder import RunFolder
from traincast.testbed.outcome import Comparison

Ints = npt.NDArray[np.int64]

MAX_DEVICES: Final = 32
"""Most devices that a page shows."""
_SIDES: Final = ("run", "forecast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison with its origin: the run, its spans, the forecast and its spans."""

    comparison: Comparison
    run: RunFolder
    measured: ActivitySpans
    predicted: ActivitySpans
    forecast: Forecast


def write_comparison(compared: Compared, path: Path) -> None:
    """Write a comparison as one self-contained HTML file."""
    write_text(path, page_text("compare", page_data(compared)))


def page_data(compared: Compared) -> dict[str, Any]:
    """Return the data of the page: the comparison, and the timelines of the shown step and of the forecast."""
    slow = [
        {"rank": place.rank, "factor": place.factor} for place in compared.run.ranks if abs(place.factor - 1.0) > 1e-9
    ]
    return {"comparison": compared.comparison.to_dict(), "slow": slow, "timeline": _timeline_data(compared)}


def shown_step(spans: ActivitySpans, seconds: tuple[float, ...]) -> tuple[int, float]:
    """Return the number and the seconds of the measured step whose time is nearest to the median."""
    steps, times = np.unique(spans.step), np.array(seconds)
    if len(steps) != len(times):
        return int(steps[len(steps) // 2]), float(times.mean())
    nearest = int(np.argmin(np.abs(times - np.median(times))))
    return int(steps[nearest]), float(times[nearest])


def _timeline_data(compared: Compared) -> dict[str, Any]:
    step, seconds = shown_step(compared.measured, compared.run.steps_s)
    sides = (compared.measured.taken(compared.measured.step == step), compared.predicted)
    ranks = np.unique(np.concatenate([side.rank for side in sides]))[:MAX_DEVICES]
    labels = tuple(dict.fromkeys([*sides[0].labels, *sides[1].labels]))
    mesh = compared.forecast.lowered.plan.mesh
    parts = [_drawn(side, number, ranks, labels, workers=mesh.num_ranks) for number, side in enumerate(sides)]
    whole = _sorted(*parts)
    lanes, columns = columns_of(whole, MAX_SPANS)
    ends = [int(whole.end.max()), round(seconds * 1e9), round(compared.comparison.predicted_s * 1e9)]
    return {
        "step": step,
        "step_ns": max(ends),
        "marks": [{"at": ends[1], "name": "run"}, {"at": ends[2], "name": "forecast"}],
        "rows": [
            {"rank": int(rank), "server": int(rank) - mesh.num_ranks}
            if rank >= mesh.num_ranks
            else {"rank": int(rank), "stage": mesh.coordinate(int(rank), "pp")}
            for rank in ranks
        ],
        "num_ranks": mesh.num_ranks,
        "labels": list(labels),
        "categories": [category.name.lower() for category in Category],
        "lanes": [_lane(int(lane)) for lane in lanes],
        **columns,
    }


def _lane(lane: int) -> dict[str, Any]:
    row, rest = divmod(lane, NUM_STREAMS * len(_SIDES))
    stream, side = divmod(rest, len(_SIDES))
    return {"row": row, "stream": STREAM_NAMES[Stream(stream)], "side": _SIDES[side]}


def _drawn(spans: ActivitySpans, side: int, ranks: Ints, labels: tuple[str, ...], *, workers: int) -> DrawnSpans:
    """Return the spans of one side on the lanes of the shown ranks."""
    streams = np.array([int(stream_of(name)) for name in spans.classes], dtype=np.int64)
    categories = np.array([int(_category(name)) for name in spans.classes], dtype=np.int64)
    number = np.array([labels.index(label) for label in spans.labels], dtype=np.int64)
    shown = spans.taken(np.isin(spans.rank, ranks))
    start = np.rint(np.maximum(shown.start, 0.0) * 1e9).astype(np.int64)
    end = np.rint(shown.end * 1e9).astype(np.int64)
    row = np.searchsorted(ranks, shown.rank)
    stream = np.where(shown.rank < workers, streams[shown.kind], int(Stream.UPDATE))
    keep = end > start
    return DrawnSpans(
        lane=((row * NUM_STREAMS + stream) * len(_SIDES) + side)[keep],
        start=start[keep],
        end=end[keep],
        busy=(end - start)[keep],
        label=number[shown.label][keep],
        category=categories[shown.kind][keep],
        microbatch=shown.microbatch[keep],
        count=np.ones(int(keep.sum()), dtype=np.int64),
        critical=np.zeros(int(keep.sum()), dtype=np.int64),
    )


def _category(name: str) -> Category:
    return Category[name.upper()] if name in COMPUTE_CLASSES else Category.COMMUNICATION


def _sorted(*parts: DrawnSpans) -> DrawnSpans:
    """Return the spans of all parts, sorted by lane and time."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in DrawnSpans.__slots__}
    order = np.lexsort((columns["start"], columns["lane"]))
    return DrawnSpans(**{name: column[order] for name, column in columns.items()})
