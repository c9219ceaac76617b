"""docs/accuracy.md from a study: its sections in order, and the plots that it shows."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks import figures, plots, words
from benchmarks.figures import Errors, Row, covered, errors, grouped
from benchmarks.worst import Reasons, worst
from traincast import __version__
from traincast.measured import assumption_kind, count_assumptions

_WORST: Final = 15
_FEWEST_TO_PICK: Final = 3
_MODES_DIFFER: Final = 1.2
_LONGEST: Final = 100
_RANDOM: Final = "at random"
_UNSTATED: Final = " not stated"
_OPTIMIZER: Final = f"optimizer{_UNSTATED}"
_TWO_WORDS: Final = ("transformer-xl", "gpt-oss")
_PLOTTED: Final = (("zero_shot", "zero-shot"), ("calibrated", "calibrated"))
_TABLES: Final = {
    "steps": "Language models under a stated strategy",
    "dp-steps": "Data-parallel training of other models",
}
_MODELS: Final[tuple[tuple[str, Callable[[Row], bool]], ...]] = (
    ("convolutional nets (cnn_…)", lambda row: row["source"].startswith("cnn_")),
    ("sequence models (transformer)", lambda row: row["source"] == "transformer"),
)


def page(study: Mapping[str, Any], *, fits: Mapping[str, Mapping[str, Any]], folder: str) -> str:
    """The whole page; ``fits`` has how right "fits" is by source, ``folder`` the plots beside the page."""
    rows: list[Row] = study["rows"]
    steps, other = ([row for row in rows if row["table"] == table] for table in _TABLES)
    return (
        "\n\n".join(
            part.strip()
            for part in (
                words.HEAD,
                _short(rows, steps, other),
                words.COMPARED,
                "## Errors on measured runs",
                words.GLOSSARY,
                f"### {_TABLES['steps']}",
                _plots("steps", folder),
                _sources([*_split(steps), ("all", steps)]),
                _repeats(steps),
                _rivals(steps),
                _modes(steps),
                f"### {_TABLES['dp-steps']}",
                _plots("dp-steps", folder),
                _sources([*_by_source(other), *_together(other), ("all", other)], by="family"),
                _apart(steps, other),
                _left_out(steps, other),
                _ablation(study, steps, other),
                _curves(study, folder),
                _picking(steps),
                _memory(steps, fits),
                _misses(study, steps, other),
                _assumed(rows),
                _skipped(study),
                words.ADVICE,
                words.OWN_RUNS,
                f"Version {__version__}.",
            )
            if part
        )
        + "\n"
    )


def drawings(study: Mapping[str, Any]) -> dict[str, str]:
    """Every plot of the page as SVG, by the name of its file."""
    made = {}
    for table, title in _TABLES.items():
        groups = _by_source([row for row in study["rows"] if row["table"] == table])
        for field, word in _PLOTTED:
            series = {
                name: [(row["measured"], row[field]) for row in rows if row.get(field) is not None]
                for name, rows in groups
            }
            made[f"{table}-{word}.svg"] = plots.scatter(f"{title}: {word}", series)
    made["learning.svg"] = plots.curve("How many runs a calibration needs", figures.curves(study["groups"]))
    return made


def _plots(table: str, folder: str) -> str:
    title = _TABLES[table]
    return "\n".join(
        f"![{title}, {word}: forecast against measured]({folder}/{table}-{word}.svg)" for _, word in _PLOTTED
    )


def _by_source(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return sorted(grouped(rows, lambda row: str(row["source"])).items())


def _split(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by source, and those of a source with both dense models and mixtures of experts apart as well."""
    found = []
    for source, members in _by_source(rows):
        found.append((source, members))
        kinds = grouped(members, lambda row: "mixtures of experts" if row["moe"] else "dense")
        if source == "megatron-bridge" and len(kinds) > 1:
            found += [(f"{source}, {kind}", kinds[kind]) for kind in sorted(kinds)]
    return found


def _together(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(name, [row for row in rows if belongs(row)]) for name, belongs in _MODELS]


def _short(rows: Sequence[Row], steps: Sequence[Row], other: Sequence[Row]) -> str:
    lines = []
    for title, members in ((_TABLES["steps"], steps), (_TABLES["dp-steps"], other)):
        made = [errors(members, name) for name in ("zero_shot", "calibrated", "unseen_model")]
        zero, known, unseen = (f"{_percent(e.median)} ({_percent(e.mean)})" for e in made)
        lines.append(
            f"{title}, {len(members):,} runs: {zero} zero-shot, {known} calibrated, {unseen} on unseen models; "
            f"{_share(covered(members))} of runs are inside their calibrated interval."
        )
    lines.append(
        f"{len({row['source'] for row in rows})} sources, {len({row['device'] for row in rows})} kinds of GPU."
    )
    points = [textwrap.fill(line, 120, initial_indent="- ", subsequent_indent="  ") for line in lines]
    return "\n".join(["In short (median error; mean in brackets):", "", *points])


def _sources(groups: Iterable[tuple[str, Sequence[Row]]], *, by: str = "source") -> str:
    columns = [by, "runs"]
    columns += [
        f"{what} {kind}" for what in ("zero-shot", "calibrated", "unseen models") for kind in ("mean", "median")
    ]
    lines = []
    for name, rows in groups:
        cells = [name, f"{len(rows):,}"]
        for field in ("zero_shot", "calibrated", "unseen_model"):
            cells += _pair(errors(rows, field), len(rows))
        lines.append([*cells, _share(covered(rows))])
    return _table([*columns, "in interval"], lines)


def _repeats(rows: Sequence[Row]) -> str:
    """Sources that ran configurations several times, forecast with and without having seen another such run."""
    lines = []
    for name, members in _split(rows):
        known = [row for row in members if row.get("repeat_seen") is not None]
        if known:
            made = [errors(known, field) for field in ("calibrated", "repeat_seen")]
            lines.append([name, f"{len(known):,}", *(cell for e in made for cell in _pair(e, len(known)))])
    if not lines:
        return ""
    said = (
        "Some sources ran a configuration several times, in several releases. *Calibrated* leaves all of them out at "
        "once; with *another seen*, only the run itself is left out."
    )
    columns = ["source", "runs", "calibrated mean", "calibrated median", "another seen mean", "another seen median"]
    return "\n\n".join(["#### Configurations that were run again", _prose(said), _table(columns, lines)])


def _rivals(rows: Sequence[Row]) -> str:
    by_source = dict(_by_source(rows))
    lines = []
    for rival in words.RIVALS:
        members = [row for row in by_source.get(rival.source, ()) if not (rival.dense and row["moe"])]
        made = [errors(members, name).mean for name in ("zero_shot", "calibrated", "unseen_model")]
        name = f"{rival.source}, dense" if rival.dense else rival.source
        lines.append([name, rival.tool, rival.figure, *(_percent(e) for e in made), rival.how])
    columns = [
        "source",
        "tool",
        "its mean error",
        "zero-shot",
        "calibrated",
        "unseen models",
        "how its figure came to be",
    ]
    said = (
        "Beside what other tools claim or reach on the same rows. All figures but the range of SimuMax are mean "
        "errors. Our calibrated ones are on runs that the fit had not seen. Of the two models of `calculon_seqsel`, "
        "*unseen models* leaves out one at a time."
    )
    shown = _table(columns, lines, numbers=(2, 3, 4, 5))
    return "\n\n".join(["#### Others on the same rows", _prose(said), shown])


def _modes(rows: Sequence[Row]) -> str:
    """Sources whose runs fall into two modes, each apart."""
    parts = []
    for source, members in _by_source(rows):
        known = [row for row in members if figures.stalled(row) is not None]
        if not known:
            continue
        modes = grouped(known, lambda row: "stalled" if figures.stalled(row) else "not stalled")
        lines = []
        for name, group in [*sorted(modes.items()), ("all", known)]:
            cells = [name, f"{len(group):,}"]
            for forecast in ("zero_shot", "calibrated", figures.in_its_mode):
                cells += _pair(errors(group, forecast), len(group))
            lines.append([*cells, _share(_right(group))])
        columns = ["mode", "runs"]
        columns += [
            f"{what} {kind}" for what in ("zero-shot", "calibrated", "mode known") for kind in ("mean", "median")
        ]
        apart = [row for row in known if row["stalled"] > _MODES_DIFFER * row["usual"]]
        said = (
            f"Some runs of `{source}` stall: every message between stages takes longer, for no reason that their "
            "configuration shows. A run counts as stalled if its time is nearer the calibrated time with stalls than "
            "the one without, as ratios. *Mode known* is the forecast in that mode: what could be reached at best. "
            f"The right mode was forecast for {_share(_right(known))} of the {len(known):,} runs, and for "
            f"{_share(_right(apart))} of the {len(apart):,} whose two times differ by more than "
            f"{_share(_MODES_DIFFER - 1.0)}; to say that none stalls is right for {_share(_never(known))} and "
            f"{_share(_never(apart))}."
        )
        parts += [f"#### Runs of {source} that stall", _prose(said), _table([*columns, "mode right"], lines)]
    return "\n\n".join(parts)


def _right(rows: Sequence[Row]) -> float:
    known = [row for row in rows if figures.stalled(row) is not None]
    return sum(figures.stalled(row) == figures.stall_forecast(row) for row in known) / len(known) if known else math.nan


def _never(rows: Sequence[Row]) -> float:
    return sum(not figures.stalled(row) for row in rows) / len(rows) if rows else math.nan


def _apart(steps: Sequence[Row], other: Sequence[Row]) -> str:
    largest = max(_by_source(steps), key=lambda item: len(item[1]), default=("none", []))
    said = (
        f"All runs count alike, and {len(largest[1]):,} of the {len(steps):,} of language models are of "
        f"`{largest[0]}`: look at how many sources a line stands on."
    )
    parts = ["## Errors taken apart", _prose(said)]
    order = [name for *_, name in figures.BANDS]
    for title, key, first in (
        ("model family", _family, None),
        ("GPU", lambda row: str(row["device"]), None),
        ("number of GPUs", figures.band, order.index),
    ):
        for table, rows in (("language models", steps), ("data-parallel training of others", other)):
            groups = sorted(grouped(rows, key).items(), key=lambda item: first(item[0]) if first else item[0])
            parts += [f"### By {title}: {table}", _breakdown(title, groups)]
    parts += ["### By strategy: language models", _breakdown("strategy", _axes(steps))]
    said = "A run is in the line of everything that it does. What its table does not state is the runtime's habit."
    return "\n\n".join([*parts, said])


def _axes(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by everything that their strategy does; the same row is in several groups."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for axis in figures.axes(row):
            groups.setdefault(axis, []).append(row)
    kinds = ("one GPU", "data", "tp >", "tp across", "pp", "cp", "ep", "ZeRO", "recomp", "prec")
    rank = {name: next(i for i, kind in enumerate(kinds) if name.startswith(kind)) for name in groups}
    return sorted(groups.items(), key=lambda item: (rank[item[0]], item[0]))


def _breakdown(by: str, groups: Iterable[tuple[str, Sequence[Row]]]) -> str:
    lines = []
    for name, rows in groups:
        made = errors(rows, "calibrated")
        cells = [name, f"{len(rows):,}", str(len({row["source"] for row in rows}))]
        cells += [*_pair(errors(rows, "zero_shot"), len(rows)), *_pair(made, len(rows))]
        lines.append([*cells, _percent(made.bias, signed=True), _share(covered(rows))])
    columns = [by, "runs", "sources", "zero-shot mean", "median", "calibrated mean", "median", "bias", "in interval"]
    return _table(columns, lines)


def _family(row: Row) -> str:
    name = str(row["family"])
    return next((family for family in _TWO_WORDS if name.startswith(family)), name.partition("-")[0])


def _left_out(steps: Sequence[Row], other: Sequence[Row]) -> str:
    lines, medians = [], []
    ends = ("left_out_low", "left_out_high")
    for name, rows in [*_by_source(steps), *_by_source(other)]:
        made = errors(rows, "zero_shot")
        medians.append(made.median)
        lines.append(_left_out_line(name, rows, made, _share(covered(rows, *ends))))
    every = [*steps, *other]
    for name, members in (("all language models", steps), ("all others", other), ("all", every)):
        lines.append(_left_out_line(name, members, errors(members, "zero_shot"), _share(covered(members, *ends))))
    middle = float(np.median(medians)) if medians else math.nan
    said = (
        "A cluster that nobody calibrated. The interval comes from the errors of all other sources, each counting "
        "alike. Families of data-parallel models count as sources here, though one publisher measured them all."
    )
    end = (
        f"The median over sources of their median errors is {_percent(middle)}; the median over all runs is "
        f"{_percent(errors(every, 'zero_shot').median)}."
    )
    shown = _table(["source", "runs", "mean error", "median error", "bias", "in interval"], lines)
    return "\n\n".join(["## A source left out", _prose(said), shown, end])


def _left_out_line(name: str, rows: Sequence[Row], made: Errors, inside: str) -> list[str]:
    shown = [_percent(made.mean), _percent(made.median), _percent(made.bias, signed=True)]
    return [name, f"{len(rows):,}", *shown, inside]


def _ablation(study: Mapping[str, Any], steps: Sequence[Row], other: Sequence[Row]) -> str:
    kept = grouped(study["groups"], lambda group: str(group["source"]))
    lines = []
    groups = [*_by_source(steps), ("all language models", steps), ("all others", other)]
    for name, rows in groups:
        fields = ("calibrated_physics", "calibrated", "unseen_model_physics", "unseen_model")
        of = kept.get(name, kept.get("deep-learning-examples", []) if name == "all others" else [])
        share = f"{sum(bool(g['correction']) for g in of)} of {len(of)}" if of else "–"
        lines.append([name, f"{len(rows):,}", share, *(_percent(errors(rows, field).mean) for field in fields)])
    said = (
        "A calibration first moves parameters that mean something (rates, latencies, host costs). What is left over "
        "may then be learned by a small correction. A group keeps it only if errors on unseen runs become smaller "
        "and those on unseen models hardly larger: one yes or no per group, decided by these same errors. Mean errors:"
    )
    columns = [
        "source",
        "runs",
        "groups that keep it",
        "unseen runs, without",
        "with",
        "unseen models, without",
        "with",
    ]
    return "\n\n".join(["## With and without the learned correction", _prose(said), _table(columns, lines)])


def _curves(study: Mapping[str, Any], folder: str) -> str:
    found = figures.curves(study["groups"])
    if not found:
        return ""
    sizes = sorted({size for points in found.values() for size in points})
    rows = [
        [str(size), *(_percent(points[size]) if size in points else "–" for points in found.values())] for size in sizes
    ]
    runs = {
        source: [g["runs"] for g in study["groups"] if g["source"] == source and g["learning_curve"]]
        for source in found
    }
    shown = "; ".join(f"`{source}`: {', '.join(map(str, counts))} runs" for source, counts in runs.items())
    said = (
        "So many runs are drawn at random, a cluster is calibrated with them, and others are forecast: the mean "
        f"error over eight draws. Groups of a source count by their runs ({shown}). Slow modes cannot be told from "
        "so few runs: all are forecast in the usual one here, and those that stalled are missed whatever a "
        "calibration has seen."
    )
    return "\n\n".join(
        [
            "## How many runs a calibration needs",
            f"![Learning curves]({folder}/learning.svg)",
            _prose(said),
            _table(["runs seen", *found], rows),
        ]
    )


def _picking(rows: Sequence[Row]) -> str:
    """Picking the best of the really measured runs of a model on so many GPUs."""
    ultrascale = [row for row in rows if row["source"] == "ultrascale" and figures.expected(row) is not None]
    sets = grouped(ultrascale, lambda row: (row["model"], row["n_gpus"], figures.samples(row)))
    groups = [members for members in sets.values() if len(members) >= _FEWEST_TO_PICK]
    if not groups:
        return ""
    made = [
        ("calibrated, the chance of a stall counted", figures.picks(groups, figures.expected)),
        ("calibrated, in the likelier mode", figures.picks(groups, lambda row: row["calibrated"])),
        ("zero-shot", figures.picks(groups, lambda row: row["zero_shot"])),
        (_RANDOM, figures.random_picks(groups)),
    ]
    calm = [
        kept for members in groups if len(kept := [r for r in members if not figures.stalled(r)]) >= _FEWEST_TO_PICK
    ]
    made += [
        ("calibrated, of the runs that did not stall", figures.picks(calm, lambda row: row["usual"])),
        ("zero-shot, of the runs that did not stall", figures.picks(calm, lambda row: row["zero_shot"])),
    ]
    lines = [
        [name, _percent(p.mean), _percent(p.median), _share(p.best), "–" if name == _RANDOM else _number(p.rank)]
        for name, p in made
    ]
    said = (
        f"`ultrascale` measured many strategies for each model, number of GPUs and batch: {len(groups)} such groups "
        f"have at least {_FEWEST_TO_PICK} runs ({sum(map(len, groups)):,} in all). In each, the run with the "
        "shortest forecast is picked; *regret* is how much longer it took than the best. Calibrated forecasts have "
        "not seen the run. With the chance p of a stall counted, a run is expected to take (1−p)·usual + p·stalled."
    )
    columns = ["picked by", "mean regret", "median regret", "best picked", "rank corr. in groups"]
    return "\n\n".join(["## Picking the best strategy", _prose(said), _table(columns, lines)])


def _memory(rows: Sequence[Row], fits: Mapping[str, Mapping[str, Any]]) -> str:
    lines, told = [], []
    for source, members in _by_source(rows):
        known = [row for row in members if row.get("measured_memory") and row.get("predicted_memory")]
        off = [100.0 * (row["predicted_memory"] / row["measured_memory"] - 1.0) for row in known]
        found = fits.get(source, {})
        if known:
            size = np.abs(off)
            bias = _percent(float(np.median(off)), signed=True)
            errors = [_percent(float(size.mean())), _percent(float(np.median(size))), bias]
            lines.append([source, f"{len(known):,}", *errors, _share(found.get("memory_coverage_90", math.nan))])
        for what, score in (("all", found), ("that memory may have caused", found.get("memory_failures", {}))):
            if not math.isnan(score.get("oom_f1", math.nan)):
                figures = [_number(score["oom_f1"]), _number(score["fits_f1"]), _percent(100.0 * score["fits_failed"])]
                told.append([source, what, *figures])
    if not lines and not told:
        return ""
    parts = ["## Memory", words.MEMORY.strip()]
    if lines:
        columns = ["source", "measured", "memory error", "median", "bias", "in interval"]
        parts.append(_table(columns, lines))
    if told:
        columns = ["source", "failures counted", "does-not-fit F1", "fits F1", "of *fits*, failed"]
        parts += [words.FITS.strip(), _table(columns, told)]
    return "\n\n".join(parts)


def _misses(study: Mapping[str, Any], steps: Sequence[Row], other: Sequence[Row]) -> str:
    reasons = Reasons(study)
    foreseen = [row for row in steps if figures.stalled(row) in (None, figures.stall_forecast(row))]
    missed = len(steps) - len(foreseen)
    said = (
        f"The {_WORST} runs of each table whose calibrated forecasts are furthest off, as ratios, and what the rows "
        "themselves say of why. A run is named by its row, from 0. What is *in interval* was allowed for."
    )
    if missed:
        said += (
            f" Of language models, {missed:,} runs in another mode than forecast hide the others, which follow apart."
        )
    groups = [(_TABLES["steps"], steps), ("Language models, mode foreseen", foreseen), (_TABLES["dp-steps"], other)]
    parts = ["## The worst cases", _prose(said)]
    for title, rows in groups if missed else groups[::2]:
        lines = [_miss(row, reasons) for row in worst(rows, _WORST)]
        columns = ["source", "row", "run", "measured", "calibrated", "error", "in interval", "why"]
        parts += [f"### Worst: {title}", _table(columns, lines, numbers=(1, 3, 4, 5))]
    return "\n\n".join(parts)


def _miss(row: Row, reasons: Reasons) -> list[str]:
    gpus = int(row["n_gpus"])
    run = f"{row['model']}, {gpus} × {row['device']}, {row['runtime']}: `{row['strategy']}`"
    error = _percent(100.0 * (row["calibrated"] / row["measured"] - 1.0), signed=True)
    inside = "–" if row.get("low") is None else "yes" if row["low"] <= row["measured"] <= row["high"] else "no"
    times = [_seconds(row[name]) for name in ("measured", "calibrated")]
    return [row["source"], str(row["index"]), run, *times, error, inside, "; ".join(reasons.of(row)) or "not known"]


def _assumed(rows: Sequence[Row]) -> str:
    """What the rows of each source left open, the most frequent first."""
    parts = ["## What rows left open", words.ASSUMED.strip()]
    for table, title in _TABLES.items():
        lines = []
        for source, group in _by_source(row for row in rows if row["table"] == table and "assumed" in row):
            kinds = count_assumptions(row["assumed"] for row in group)
            some = sum(any(assumption_kind(text) != _OPTIMIZER for text in row["assumed"]) for row in group)
            said = ", ".join(f"{what.removesuffix(_UNSTATED)} ({count:,})" for what, count in kinds.items())
            lines.append([source, f"{len(group):,}", f"{some:,}", said.replace("|", "/")])
        if lines:
            columns = ["source" if table == "steps" else "family", "runs", "with more open than the optimizer", "open"]
            parts += [f"{title}:", _table(columns, lines, numbers=(1, 2))]
    return "\n\n".join(parts) if len(parts) > 2 else ""


def _skipped(study: Mapping[str, Any]) -> str:
    parts = ["## Rows that were skipped, and why"]
    for table, title in _TABLES.items():
        reasons = Counter(_kind(entry["reason"]) for entry in study["skipped"] if entry["table"] == table)
        if reasons:
            rows = [[reason, f"{count:,}"] for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))]
            parts += [f"{title}, {sum(reasons.values()):,} rows:", _table(["why", "rows"], rows)]
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _kind(reason: str) -> str:
    """A reason without its remedy, at most so long."""
    kind = " ".join(reason.split(";", maxsplit=1)[0].split())
    return kind if len(kind) <= _LONGEST else f"{kind[:_LONGEST].rsplit(' ', maxsplit=1)[0]} …"


def _pair(made: Errors, runs: int) -> list[str]:
    """Mean and median; with the number of runs where not all ``runs`` have the forecast."""
    count = f" ({made.n:,})" if 0 < made.n < runs else ""
    return [f"{_percent(made.mean)}{count}", _percent(made.median)]


def _prose(said: str) -> str:
    """A paragraph in lines of usual length."""
    return textwrap.fill(said, 120, break_long_words=False, break_on_hyphens=False)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] | None = None) -> str:
    """A Markdown table; all columns but the first are numbers unless said otherwise, lines of sums are bold."""
    right: Callable[[int], bool] = (lambda i: i > 0) if numbers is None else lambda i: i in numbers
    lines = [_line(columns), _line(["---:" if right(i) else "---" for i in range(len(columns))])]
    for row in rows:
        total = row[0] == "all" or row[0].startswith("all ")
        lines.append(_line([f"**{cell}**" for cell in row] if total else row))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _percent(value: float, *, signed: bool = False) -> str:
    return "–" if math.isnan(value) else f"{value:{'+' if signed else ''}.1f} %"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1.0 else f"{1000 * value:.3g} ms"
