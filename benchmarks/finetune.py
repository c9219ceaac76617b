"""Fine-tuning runs of a source that nobody has seen: leave out one source at a time, choose habits by the others.

    python -m benchmarks.finetune finetune.parquet [-o outcomes.json] [--write]

Some figures of fine-tuning (:class:`Habits`) were chosen by looking at published runs. Here a program chooses them: for
each source it starts from neutral figures, takes for one habit after another the candidate with the least error on the
other sources, and judges the source that was left out. A habit that no other source shows stays neutral. In a second
column, forecasts are also multiplied by the median ratio of measured to forecast of the other sources with the same
kind of framework. No calibration of a cluster is used. Forecasts are saved in the file given by ``-o`` and reused by a
later run. ``--write`` replaces the tables in docs/fine-tuning.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.markdown import table as markdown
from benchmarks.markers import write
from traincast.forecast import forecast
from traincast.measured import source_of
from traincast.measured.calibrations import without_calibration
from traincast.measured.dialect import vocabulary
from traincast.measured.tuning.lengths import Lengths
from traincast.measured.tuning.rows import MeasuredTuning, completed, read_tuning, start_up
from traincast.measured.tuning.words import Tuning, tuning_of
from traincast.strategy import Request, find_runtime, load_runtime
from traincast.strategy.prepare import memory_by_stage, prepare
from traincast.tables import Row, figure, read_rows, text
from traincast.validating.finetune import counted, reserved_ratio

PAGE: Final = Path(__file__).parent.parent / "docs" / "fine-tuning.md"
CANDIDATES: Final[Mapping[str, tuple[Any, ...]]] = {
    "methods": (False, True),
    "targets": (("q", "v"), ("qkv",), ("attention",)),
    "update_passes": (1, 3),
    "padded": (1.0, 1.08, 1.16),
    "start_s": (0.0, 1.0, 2.0, 4.0),
}
"""Habits in the order in which they are chosen, and what each may be; the first candidate is the neutral one."""
TIMES: Final = ("methods", "targets", "update_passes", "padded")
"""Habits that change the simulated time of a step; the time of the start is added to it."""
MEMORIES: Final = ("methods", "targets")
"""Habits that change the memory of a step."""
LEAST_GAIN: Final = 0.002
"""By how much the error on other sources must fall before a habit leaves its neutral value."""
Ratios = tuple[float | None, float | None]
"""Measured over forecast of one row: its time and its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How fine-tuning runs behave where a row does not say.

    ``padded``: tokens computed per token counted, if batches of similar lengths are padded to their longest sequence.
    ``start_s``: seconds that the first step takes longer than others, if the time of a step is that of a short run.
    ``update_passes``: how often an update that is not fused reads and writes its tensors; 0 leaves it to the runtime.
    ``targets``: layers that Megatron's recipes adapt by default; none leaves it to the reader. With ``methods``, the
    extra kernels of adapter methods other than LoRA are counted.
    """

    padded: float = vocabulary(Lengths).padded
    start_s: float = vocabulary(Lengths).start_s
    update_passes: int = 0
    targets: tuple[str, ...] = ()
    methods: bool = True

    def of(self, row: Row, tuning: Tuning) -> Tuning:
        """Return what a row says of its fine-tuning, with the targets and methods of these habits."""
        if self.targets and not tuning.targets and tuning.method != "full" and _megatron(row):
            tuning = replace(tuning, targets=self.targets)
        if not self.methods and tuning.method not in ("full", "lora"):
            tuning = replace(tuning, method="lora", targets=(), rank=0 if tuning.trainable else tuning.rank)
        return tuning

    def read(self, index: int, row: Row) -> MeasuredTuning:
        """Return the run of a row under these habits."""
        row = completed(row, [])
        found = read_tuning(index, row, tuning=self.of(row, tuning_of(row)), padded=self.padded)
        return replace(
            found,
            run=replace(found.run, request=self._updated(found.run.request)),
            longest=self._updated(found.longest),
        )

    def _updated(self, request: Request) -> Request:
        if not self.update_passes or request.runtime.kernels.update_passes == 1:
            return request
        return replace(request, runtime=request.runtime.patched(kernels={"update_passes": self.update_passes}))


USUAL: Final = Habits()
"""The habits of forecasts."""
NEUTRAL: Final = Habits(padded=1.0, start_s=0.0, update_passes=1, targets=("q", "v"), methods=False)
"""What one would take who has seen no run: nothing is padded or slower at first, and all adapters are LoRA."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="save forecasts here, and reuse them")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/fine-tuning.md")
    options = parser.parse_args(arguments)
    judge = Judge(options.table, options.output)
    studies = {source: choose(judge, without=source) for source in judge.sources}
    parts = {"left-out-sources": errors(judge, studies), "left-out-habits": chosen(studies)}
    for name, said in parts.items():
        print(f"{said}\n")
        if options.write:
            write(PAGE, name, said)


class Judge:
    """Forecasts of the rows of a table under any habits; a row is forecast once for each setting that matters to it."""

    def __init__(self, path: Path, saved: Path | None = None) -> None:
        self._saved = saved
        self.rows: Sequence[Row] = read_rows(path, needs=())
        self.sources = sorted({source_of(row) for row in self.rows})
        found = [read_tuning(index, row) for index, row in enumerate(self.rows)]
        self._measured = [(one.run.seconds, one.run.memory_bytes) for one in found]
        self._matters = [_matters(one, row) for one, row in zip(found, self.rows, strict=True)]
        self.kind = [_kind(one) for one in found]
        self._known: dict[str, float] = {}
        self._seconds = lru_cache(maxsize=256)(lambda request: forecast(request).report.step_s)
        if saved is not None and saved.is_file():
            self._known = json.loads(saved.read_text(encoding="utf-8"))

    def of(self, source: str) -> list[int]:
        """Return the rows of a source."""
        return [index for index, row in enumerate(self.rows) if source_of(row) == source]

    def matters(self, rows: Sequence[int], habit: str) -> bool:
        """Return whether any of the rows depends on a habit."""
        return any(habit in self._matters[index] for index in rows)

    def ratios(self, rows: Sequence[int], habits: Habits) -> list[Ratios]:
        """Return measured over forecast of each row."""
        before = len(self._known)
        made = [self._ratios(index, habits) for index in rows]
        if self._saved is not None and len(self._known) > before:
            self._saved.write_text(json.dumps(self._known), encoding="utf-8")
        return made

    def _ratios(self, index: int, habits: Habits) -> Ratios:
        seconds, nbytes = self._measured[index]
        time_key = self._key("time", index, habits, TIMES)
        memory_key = self._key("memory", index, habits, MEMORIES)
        if (seconds and time_key not in self._known) or (nbytes and memory_key not in self._known):
            self._forecast(index, habits, time_key, memory_key)
        return (
            seconds / (self._known[time_key] + start_up(self.rows[index], habits.start_s)) if seconds else None,
            nbytes / self._known[memory_key] if nbytes else None,
        )

    def _forecast(self, index: int, habits: Habits, time_key: str, memory_key: str) -> None:
        found = habits.read(index, self.rows[index])
        if found.run.seconds and time_key not in self._known:
            self._known[time_key] = self._seconds(without_calibration(found.run.request))
        if found.run.memory_bytes and memory_key not in self._known:
            longest = without_calibration(found.longest)
            parts = memory_by_stage(longest, prepare(longest))
            shown = counted(parts, found.kind, longest.runtime, ratio=reserved_ratio(found, longest, parts))
            self._known[memory_key] = min(shown, longest.cluster.device.memory_bytes)

    def _key(self, what: str, index: int, habits: Habits, names: Sequence[str]) -> str:
        settings = {name: getattr(habits, name) for name in names if name in self._matters[index]}
        if settings.get("update_passes") == 0:
            settings["update_passes"] = load_runtime("hf-trainer").kernels.update_passes
        return json.dumps([what, index, settings])


def choose(judge: Judge, *, without: str) -> Habits:
    """Return the habits that fit the sources other than ``without`` best, chosen one after another."""
    others = [judge.of(source) for source in judge.sources if source != without]
    best = NEUTRAL
    for name, candidates in CANDIDATES.items():
        shown = [rows for rows in others if judge.matters(rows, name)]
        if not shown:
            continue
        least = _cost(judge, shown, best)
        for value in candidates[1:]:
            habits = replace(best, **{name: value})
            cost = _cost(judge, shown, habits)
            if cost < least - LEAST_GAIN:
                best, least = habits, cost
    return best


def _cost(judge: Judge, groups: Sequence[Sequence[int]], habits: Habits) -> float:
    """Return the median error of time and that of memory, averaged over the sources that have them."""
    found = [e for rows in groups for e in map(_median, _errors(judge.ratios(rows, habits))) if e is not None]
    return float(np.mean(found)) if found else 0.0


def _errors(ratios: Sequence[Ratios], factors: tuple[float, float] = (1.0, 1.0)) -> tuple[list[float], list[float]]:
    """Return the relative errors of times and of memories, with forecasts multiplied by ``factors``."""
    time, memory = ([abs(factors[k] / r[k] - 1.0) for r in ratios if r[k]] for k in (0, 1))  # type: ignore[operator]
    return time, memory


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def factors(judge: Judge, habits: Habits, *, without: str, kind: str) -> tuple[float, float]:
    """Return the medians of measured over forecast, for time and memory, of other sources with a kind of framework."""
    found: dict[int, list[float]] = defaultdict(list)
    for source in judge.sources:
        rows = [index for index in judge.of(source) if judge.kind[index] == kind]
        if source == without or not rows:
            continue
        for k, values in enumerate(zip(*judge.ratios(rows, habits), strict=True)):
            known = [value for value in values if value]
            found[k] += [float(np.median(known))] if known else []
    return tuple(float(np.exp(np.mean(np.log(found[k])))) if found[k] else 1.0 for k in (0, 1))  # type: ignore[return-value]


def errors(judge: Judge, studies: Mapping[str, Habits]) -> str:
    """Return the table of median errors by source."""
    lines: list[list[str]] = []
    every: dict[tuple[str, int], list[float]] = defaultdict(list)
    for source, habits in studies.items():
        rows = judge.of(source)
        by_kind = {k: factors(judge, habits, without=source, kind=k) for k in {judge.kind[i] for i in rows}}
        left_out = judge.ratios(rows, habits)
        scaled: tuple[list[float], list[float]] = ([], [])
        for index, ratio in zip(rows, left_out, strict=True):
            for k, values in enumerate(_errors([ratio], by_kind[judge.kind[index]])):
                scaled[k].extend(values)
        columns = {
            "neutral": _errors(judge.ratios(rows, NEUTRAL)),
            "left out": _errors(left_out),
            "scaled": scaled,
            "usual": _errors(judge.ratios(rows, USUAL)),
        }
        for name, (time, memory) in columns.items():
            every[name, 0] += time
            every[name, 1] += memory
        lines.append([source, str(len(rows)), *_cells(lambda name, k, of=columns: of[name][k])])  # type: ignore[misc]
    lines.append(["all", str(len(judge.rows)), *_cells(lambda name, k: every[name, k])])
    heads = ["neutral", "left out", "left out, scaled", "as shipped"]
    head = ["source", "rows", *(f"time: {h}" for h in heads), *(f"memory: {h}" for h in heads)]
    return markdown(head, lines)


def _cells(values: Callable[[str, int], list[float]]) -> list[str]:
    names = ("neutral", "left out", "scaled", "usual")
    medians = [_median(values(name, k)) for k in (0, 1) for name in names]
    return ["–" if value is None else f"{100 * value:.1f} %" for value in medians]


def chosen(studies: Mapping[str, Habits]) -> str:
    """Return the table of habits that were chosen without each source, and of those that forecasts use."""
    names = tuple(CANDIDATES)
    lines = [[source, *(_says(getattr(habits, name)) for name in names)] for source, habits in studies.items()]
    shipped = replace(USUAL, targets=("qkv",), update_passes=load_runtime("hf-trainer").kernels.update_passes)
    lines.append(["as shipped", *(_says(getattr(shipped, name)) for name in names)])
    return markdown(["without", *(f"`{name}`" for name in names)], lines)


def _says(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "+".join(value) if isinstance(value, tuple) else f"{value:g}"


def _megatron(row: Row) -> bool:
    return find_runtime(text(row, "framework")).name.startswith("megatron") if text(row, "framework") else False


def _kind(found: MeasuredTuning) -> str:
    """Return the kind of framework of a row: Megatron's, or plain modules of Hugging Face and the like."""
    return "megatron" if found.run.request.runtime.name.startswith("megatron") else "plain"


def _matters(found: MeasuredTuning, row: Row) -> tuple[str, ...]:
    """Return the habits that change the forecast of a row."""
    tuning, notes = tuning_of(row), text(row, "notes").lower()
    megatron = _kind(found) == "megatron"
    decide = {
        "methods": tuning.method not in ("full", "lora"),
        "targets": megatron and tuning.method != "full" and not tuning.targets,
        "update_passes": found.run.request.runtime.kernels.update_passes > 1,
        "padded": bool(figure(row, "avg_tokens_per_step")) and "packed" not in notes and "padding" in notes,
        "start_s": start_up(row) > 0.0,
    }
    return tuple(name for name in CANDIDATES if decide[name])


if __name__ == "__main__":
    main()
