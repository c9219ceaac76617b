"""The folder that ``traincast testbed run`` writes: what ran, how long its steps took, all spans, and a measured step.

:func:`write_row` writes the run as one row of a table of measured steps, for ``validate steps`` and ``calibrate``.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from traincast.errors import FileFormatError
from traincast.files import write_text
from traincast.schema import MAX_FILE_BYTES, Text, convert
from traincast.tables import read_arrow
from traincast.testbed.activity import COMPUTE_CLASSES, ActivitySpans, class_of

if TYPE_CHECKING:
    import pyarrow as pa


ROW: Final = "row.csv"
"""The name of the table in the folder of a run."""


def row_of_run(run: RunFolder) -> dict[str, Any]:
    """Return the row of a run: the columns that ``validate steps`` reads, and what the machine was.

    The device is that of the first rank: the emulated one, or ``cpu``. Cells of what a run does not state are ``None``.
    """
    device = run.ranks[0].device if run.ranks and run.ranks[0].device else run.compute
    return {
        "source": "testbed",
        "date": str(run.started)[:10],
        "framework": run.runtime,
        "gpu": "cpu" if run.compute == "real" else device,
        "n_gpus": run.num_ranks,
        "gpus_per_node": 1,
        "interconnect": _network(run),
        "model": run.model,
        "seq": run.seq,
        "global_batch": run.global_batch,
        "strategy": run.strategy,
        "precision": run.precision,
        "step_time_s": run.step_s,
        "step_time_cv": run.repeat_cv,
        "steps": len(run.steps_s),
        "notes": f"testbed, {'real' if run.compute == 'real' else 'emulated'} compute, torch {run.torch}",
    }


def _network(run: RunFolder) -> str:
    """Return the slowest link of a run in words that a table of runs uses."""
    rates = [place.rate for place in run.ranks if place.rate]
    return f"{min(rates) * 8e-9:g} Gbit/s Ethernet" if rates else "Ethernet"


def write_row(run: RunFolder, path: Path) -> None:
    """Write the row of a run as a table of one row."""
    row = row_of_run(run)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(row)
    table.writerow("" if value is None else value for value in row.values())
    write_text(path, text.getvalue())


FORMAT: Final = 1
"""The format of the folders that this version reads."""
SPAN_COLUMNS: Final = (
    "rank", "step", "microbatch", "stream", "category", "label", "name", "start_s", "end_s", "nbytes",
)  # fmt: skip
_CATEGORIES: Final = frozenset({*COMPUTE_CLASSES, "communication", "wait"})
_OF_SAMPLER: Final = ("monitor_hz", "windows_s", "sampler_cpu_share")
_MOST_STEPS: Final = 1_000_000
Seconds = Annotated[float, Meta(gt=0.0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank ran: ``factor`` times slower than the device, with a link of ``rate`` bytes per second."""

    rank: Annotated[int, Meta(ge=0, le=100_000)]
    node: Annotated[int, Meta(ge=0, le=100_000)] | str = 0
    device: str = ""
    factor: Annotated[float, Meta(gt=0.0, le=1e6)] = 1.0
    rate: Annotated[float, Meta(gt=0.0, le=1e15)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """What ``run.json`` of a run says; ``steps_s`` has the seconds of each counted step.

    A run with a sampler (``monitor_hz``) has ``windows_s``: start and end of every counted step on the clock of its
    readings, or of all of them together if steps follow one another without a gap. ``sampler_cpu_share`` is the
    share of a core that sampling took.

    ``waited_share`` and ``lost_share`` are means over the steps, of the worst rank in each: for which share of it
    threads waited for a core, and by which share a host delayed its emulated device. ``disturbed_steps`` ran and were
    left out. ``cannot_carry`` says why this machine could not carry the run, if it could not.
    """

    model: Text
    strategy: str
    ranks: tuple[RankPlace, ...]
    num_ranks: Annotated[int, Meta(ge=1, le=100_000)]
    global_batch: Annotated[int, Meta(ge=1, le=10**9)]
    precision: Text
    compute: Text
    network: Text
    runtime: Text
    step_s: Seconds
    steps_s: Annotated[tuple[Seconds, ...], Meta(min_length=1, max_length=_MOST_STEPS)]
    repeat_cv: Annotated[float, Meta(ge=0.0)]
    seq: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    cluster: Text = "cluster.toml"
    started: str | float = ""
    torch: str = ""
    monitor_hz: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    windows_s: tuple[tuple[float, float], ...] = ()
    sampler_cpu_share: float | None = None
    warnings: tuple[str, ...] = ()
    waited_share: Annotated[float, Meta(ge=0.0)] = 0.0
    lost_share: Annotated[float, Meta(ge=0.0)] = 0.0
    disturbed_steps: Annotated[int, Meta(ge=0)] = 0
    cannot_carry: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON shows it; a run without a sampler says nothing of one."""
        told = {"format": FORMAT, **asdict(self)}
        if self.monitor_hz is None:
            for name in _OF_SAMPLER:
                del told[name]
        return told


def read_run_folder(path: Path) -> RunFolder:
    """Return what ``run.json`` in the folder ``path`` says; refuse a folder that is missing, damaged or too new."""
    if not path.is_dir():
        raise FileFormatError(f"{path} is not a folder: give the folder that `traincast testbed run -o` wrote")
    file = path / "run.json"
    if not file.is_file():
        raise FileFormatError(f"{path} has no run.json: it is not the folder of a run, or the run did not finish")
    try:
        text = file.read_bytes()
        if len(text) > 100 * MAX_FILE_BYTES:
            raise FileFormatError(f"{file} is too large for a description of a run")
        content = json.loads(text)
    except OSError as error:
        raise FileFormatError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file} is not valid JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise FileFormatError(f"{file} has format {found!r}: this Traincast reads runs of format {FORMAT}")
    return convert(content, RunFolder, str(file), remedy="run `traincast testbed run` again")


def read_spans(path: Path) -> pa.Table:
    """Return the table of spans of the run in the folder ``path``."""
    return read_arrow(path / "spans.parquet", needs=SPAN_COLUMNS)


def measured_spans(table: pa.Table, where: str) -> tuple[ActivitySpans, ActivitySpans]:
    """Return the activities of a table of spans, and its waits; ``where`` names the table in errors."""
    category = np.array(table.column("category").to_pylist(), dtype=np.str_)
    unknown = sorted(set(category.tolist()) - _CATEGORIES)
    if unknown:
        raise FileFormatError(f"{where}: unknown category {unknown[0]!r}; known are {', '.join(sorted(_CATEGORIES))}")
    label = np.array([class_of(str(text)) for text in table.column("label").to_pylist()], dtype=np.str_)
    start, end = _numbers(table, "start_s", where), _numbers(table, "end_s", where)
    if np.any(end < start):
        raise FileFormatError(f"{where}: a span ends before it starts")
    classes, kind = np.unique(np.where(category == "communication", label, category), return_inverse=True)
    labels, name = np.unique(np.array(table.column("name").to_pylist(), dtype=np.str_), return_inverse=True)
    spans = ActivitySpans(
        classes=tuple(str(name) for name in classes),
        rank=_numbers(table, "rank", where).astype(np.int64),
        step=_numbers(table, "step", where).astype(np.int64),
        kind=kind.astype(np.int64),
        labels=tuple(str(text) for text in labels),
        label=name.astype(np.int64),
        microbatch=_numbers(table, "microbatch", where).astype(np.int64),
        start=start,
        end=end,
    )
    waits = category == "wait"
    return spans.taken(~waits & (end > start)), spans.taken(waits & (end > start))


def _numbers(table: pa.Table, name: str, where: str) -> npt.NDArray[np.float64]:
    try:
        values = np.asarray(table.column(name).to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{where}: column {name} has values that are not numbers") from error
    if not np.all(np.isfinite(values)):
        raise FileFormatError(f"{where}: column {name} has values that are not finite numbers")
    return values
