"""Sections of docs/accuracy.md on errors of step times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks import figures, words
from benchmarks.figures import Errors, Row, by_source, covered, errors, grouped
from benchmarks.markdown import number, pair, percent, prose, share, table
from benchmarks.study import EXAMPLES

_FEWEST_TO_PICK: Final = 3
_MODES_DIFFER: Final = 1.2
_RANDOM: Final = "at random"
_TWO_WORDS: Final = ("transformer-xl", "gpt-oss")
_MODELS: Final[tuple[tuple[str, Callable[[Row], bool]], ...]] = (
    ("convolutional nets (cnn_…)", lambda row: row["source"].startswith("cnn_")),
    ("sequence models (transformer)", lambda row: row["source"] == "transformer"),
)


def split(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return rows by source, and dense models and mixtures of experts apart for a source that has many of both."""
    found = []
    for source, members in by_source(rows):
        found.append((source, members))
        kinds = grouped(members, lambda row: "mixtures of experts" if row["moe"] else "dense")
        if source == "megatron-bridge" and len(kinds) > 1:
            found += [(f"{source}, {kind}", kinds[kind]) for kind in sorted(kinds)]
    return found


def together(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(name, [row for row in rows if belongs(row)]) for name, belongs in _MODELS]


def sources(groups: Iterable[tuple[str, Sequence[Row]]], *, by: str = "source") -> str:
    columns = [by, "runs"]
    columns += [
        f"{what} {kind}" for what in ("zero-shot", "calibrated", "unseen models") for kind in ("mean", "median")
    ]
    lines = []
    for name, rows in groups:
        cells = [name, f"{len(rows):,}"]
        for field in ("zero_shot", "calibrated", "unseen_model"):
            cells += pair(errors(rows, field), len(rows))
        lines.append([*cells, share(covered(rows))])
    return table([*columns, "in interval"], lines)


def repeats(rows: Sequence[Row]) -> str:
    """Compare forecasts with and without repeats of the same configuration in the fit."""
    lines = []
    for name, members in split(rows):
        known = [row for row in members if row.get("repeat_seen") is not None]
        if known:
            made = [errors(known, field) for field in ("calibrated", "repeat_seen")]
            lines.append([name, f"{len(known):,}", *(cell for e in made for cell in pair(e, len(known)))])
    if not lines:
        return ""
    said = (
        "Some sources ran a configuration several times, with several releases. *Calibrated* leaves out all runs of a "
        "configuration at once; *another seen* leaves out only the run itself."
    )
    columns = ["source", "runs", "calibrated mean", "calibrated median", "another seen mean", "another seen median"]
    return "\n\n".join(["#### Configurations that were run several times", prose(said), table(columns, lines)])


def rivals(rows: Sequence[Row]) -> str:
    members_of = dict(by_source(rows))
    lines = []
    for rival in words.RIVALS:
        members = [row for row in members_of.get(rival.source, ()) if not (rival.dense and row["moe"])]
        made = [errors(members, name).mean for name in ("zero_shot", "calibrated", "unseen_model")]
        name = f"{rival.source}, dense" if rival.dense else rival.source
        lines.append([name, rival.tool, rival.figure, *(percent(e) for e in made), rival.how])
    columns = [
        "source",
        "tool",
        "its mean error",
        "zero-shot",
        "calibrated",
        "unseen models",
        "where its figure comes from",
    ]
    said = (
        "The errors that other tools claim or reach on the same rows. All figures but the range of SimuMax are mean "
        "errors. Our calibrated figures are on runs that the fit had not seen. `calculon_seqsel` has two models, and "
        "*unseen models* leaves out one of them at a time."
    )
    shown = table(columns, lines, numbers=(2, 3, 4, 5))
    return "\n\n".join(["#### Others on the same rows", prose(said), shown])


def modes(rows: Sequence[Row]) -> str:
    """Show the errors of each mode, for sources whose runs fall into two modes."""
    parts = []
    for source, members in by_source(rows):
        known = [row for row in members if figures.stalled(row) is not None]
        if not known:
            continue
        modes = grouped(known, lambda row: "stalled" if figures.stalled(row) else "not stalled")
        lines = []
        for name, group in [*sorted(modes.items()), ("all", known)]:
            cells = [name, f"{len(group):,}"]
            for forecast in ("zero_shot", "calibrated", figures.in_its_mode):
                cells += pair(errors(group, forecast), len(group))
            lines.append([*cells, share(_right(group))])
        columns = ["mode", "runs"]
        columns += [
            f"{what} {kind}" for what in ("zero-shot", "calibrated", "mode known") for kind in ("mean", "median")
        ]
        apart = [row for row in known if row["stalled"] > _MODES_DIFFER * row["usual"]]
        said = (
            f"Some runs of `{source}` stall: every message between stages takes longer, and their configuration does "
            "not explain it. A run counts as stalled if the ratio of its time to the calibrated time with stalls is "
            "nearer to 1 than the ratio to the time without. *Mode known* is the forecast in that mode, the best that "
            f"could be reached. The forecast has the right mode for {share(_right(known))} of the {len(known):,} runs, "
            f"and for {share(_right(apart))} of the {len(apart):,} runs whose two times differ by more than "
            f"{share(_MODES_DIFFER - 1.0)}. Always forecasting no stall would be right for {share(_never(known))} and "
            f"{share(_never(apart))}."
        )
        parts += [f"#### Runs of {source} that stall", prose(said), table([*columns, "mode right"], lines)]
    return "\n\n".join(parts)


def _right(rows: Sequence[Row]) -> float:
    known = [row for row in rows if figures.stalled(row) is not None]
    return sum(figures.stalled(row) == figures.stall_forecast(row) for row in known) / len(known) if known else math.nan


def _never(rows: Sequence[Row]) -> float:
    return sum(not figures.stalled(row) for row in rows) / len(rows) if rows else math.nan


def apart(steps: Sequence[Row], other: Sequence[Row]) -> str:
    largest = max(by_source(steps), key=lambda item: len(item[1]), default=("none", []))
    said = (
        f"Every run counts once, and {len(largest[1]):,} of the {len(steps):,} runs of language models come from "
        f"`{largest[0]}`: the column *sources* says how many sources a line has."
    )
    parts = ["## Errors by model, GPU, scale and strategy", prose(said)]
    order = [name for *_, name in figures.BANDS]
    for title, key, first in (
        ("model family", _family, None),
        ("GPU", lambda row: str(row["device"]), None),
        ("number of GPUs", figures.band, order.index),
    ):
        for models, rows in (("language models", steps), ("data-parallel training of others", other)):
            groups = sorted(grouped(rows, key).items(), key=lambda item: first(item[0]) if first else item[0])
            parts += [f"### By {title}: {models}", _breakdown(title, groups)]
    parts += ["### By strategy: language models", _breakdown("strategy", _axes(steps))]
    said = "A run counts in every line that applies to it. What its table does not state is the default of its runtime."
    return "\n\n".join([*parts, said])


def _axes(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each technique that a strategy uses; a row is in several groups."""
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
        cells += [*pair(errors(rows, "zero_shot"), len(rows)), *pair(made, len(rows))]
        lines.append([*cells, percent(made.bias, signed=True), share(covered(rows))])
    columns = [by, "runs", "sources", "zero-shot mean", "median", "calibrated mean", "median", "bias", "in interval"]
    return table(columns, lines)


def _family(row: Row) -> str:
    name = str(row["family"])
    return next((family for family in _TWO_WORDS if name.startswith(family)), name.partition("-")[0])


def left_out(steps: Sequence[Row], other: Sequence[Row]) -> str:
    lines, medians = [], []
    ends = ("left_out_low", "left_out_high")
    for name, rows in [*by_source(steps), *by_source(other)]:
        made = errors(rows, "zero_shot")
        medians.append(made.median)
        lines.append(_left_out_line(name, rows, made, share(covered(rows, *ends))))
    every = [*steps, *other]
    for name, members in (("all language models", steps), ("all others", other), ("all", every)):
        lines.append(_left_out_line(name, members, errors(members, "zero_shot"), share(covered(members, *ends))))
    middle = float(np.median(medians)) if medians else math.nan
    said = (
        "These are the errors on a cluster without calibration. The interval comes from the errors of all other "
        "sources, with the same weight for each. Families of data-parallel models count as sources here, although one "
        "publisher measured them all."
    )
    end = (
        f"The median over sources of their median errors is {percent(middle)}; the median over all runs is "
        f"{percent(errors(every, 'zero_shot').median)}."
    )
    shown = table(["source", "runs", "mean error", "median error", "bias", "in interval"], lines)
    return "\n\n".join(["## A source left out", prose(said), shown, end])


def _left_out_line(name: str, rows: Sequence[Row], made: Errors, inside: str) -> list[str]:
    shown = [percent(made.mean), percent(made.median), percent(made.bias, signed=True)]
    return [name, f"{len(rows):,}", *shown, inside]


def ablation(study: Mapping[str, Any], steps: Sequence[Row], other: Sequence[Row]) -> str:
    kept = grouped(study["groups"], lambda group: str(group["source"]))
    lines = []
    groups = [*by_source(steps), ("all language models", steps), ("all others", other)]
    for name, rows in groups:
        fields = ("calibrated_physics", "calibrated", "unseen_model_physics", "unseen_model")
        others = [group for source, groups in kept.items() if source.endswith(EXAMPLES) for group in groups]
        of = others if name == "all others" else kept.get(name, [])
        share = f"{sum(bool(g['correction']) for g in of)} of {len(of)}" if of else "–"
        lines.append([name, f"{len(rows):,}", share, *(percent(errors(rows, field).mean) for field in fields)])
    said = (
        "A calibration first fits parameters with a meaning (rates, latencies, host times). A small learned correction "
        "may then reduce the remaining error. A group keeps the correction only if errors on unseen runs are smaller "
        "and errors on unseen models at most slightly larger; these same errors decide it, once for each group. The "
        "table has mean errors."
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
    return "\n\n".join(["## With and without the learned correction", prose(said), table(columns, lines)])


def curves(study: Mapping[str, Any], folder: str) -> str:
    found = figures.curves(study["groups"])
    if not found:
        return ""
    sizes = sorted({size for points in found.values() for size in points})
    rows = [
        [str(size), *(percent(points[size]) if size in points else "–" for points in found.values())] for size in sizes
    ]
    runs = {
        source: [g["runs"] for g in study["groups"] if g["source"] == source and g["learning_curve"]]
        for source in found
    }
    shown = "; ".join(f"`{source}`: {', '.join(map(str, counts))} runs" for source, counts in runs.items())
    said = (
        "A cluster is calibrated with runs drawn at random, and other runs are forecast; errors are means over eight "
        f"draws. Groups of a source are weighted by their runs ({shown}). So few runs cannot reveal a slow mode: all "
        "runs are forecast without stalls here, and those that stalled have large errors whatever the calibration has "
        "seen."
    )
    return "\n\n".join(
        [
            "## How many runs a calibration needs",
            f"![Learning curves]({folder}/learning.svg)",
            prose(said),
            table(["runs seen", *found], rows),
        ]
    )


def picking(rows: Sequence[Row]) -> str:
    """Show how good the strategy is that a forecast picks among measured ones."""
    ultrascale = [row for row in rows if row["source"] == "ultrascale" and figures.expected(row) is not None]
    sets = grouped(ultrascale, lambda row: (row["model"], row["n_gpus"], figures.samples(row)))
    groups = [members for members in sets.values() if len(members) >= _FEWEST_TO_PICK]
    if not groups:
        return ""
    made = [
        ("calibrated, probability of a stall counted", figures.picks(groups, figures.expected)),
        ("calibrated, geometric mean of both modes", figures.picks(groups, figures.log_mean)),
        *(
            (f"calibrated, {name} of both modes", figures.picks(groups, partial(figures.in_the_worse, chance=p)))
            for name, p in (("90th percentile", 0.1), ("75th percentile", 0.25), ("median", 0.5))
        ),
        ("calibrated, in the more likely mode", figures.picks(groups, lambda row: row["calibrated"])),
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
        [name, percent(p.mean), percent(p.median), share(p.best), "–" if name == _RANDOM else number(p.rank)]
        for name, p in made
    ]
    said = (
        f"`ultrascale` measured many strategies for each model, number of GPUs and batch: {len(groups)} such groups "
        f"have at least {_FEWEST_TO_PICK} runs ({sum(map(len, groups)):,} in all). In each group the run with the "
        "shortest forecast is picked; *regret* is how much longer it took than the best run. Calibrated forecasts have "
        "not seen the run. If the probability p of a stall is counted, the forecast is (1−p)·usual + p·stalled."
    )
    columns = ["picked by", "mean regret", "median regret", "best picked", "rank corr. in groups"]
    return "\n\n".join(["## Picking the best strategy", prose(said), table(columns, lines)])
