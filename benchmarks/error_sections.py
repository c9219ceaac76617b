"""Sections of docs/accuracy.md on errors of step times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks import figures, words
from benchmarks.figures import Errors, Row, by_source, covered, errors, grouped
from benchmarks.markdown import number, pair, percent, prose, share, table

_FEWEST_TO_PICK: Final = 3
_MODES_DIFFER: Final = 1.2
_RANDOM: Final = "at random"
_TWO_WORDS: Final = ("transformer-xl", "gpt-oss")
_MODELS: Final[tuple[tuple[str, Callable[[Row], bool]], ...]] = (
    ("convolutional nets (cnn_…)", lambda row: row["source"].startswith("cnn_")),
    ("sequence models (transformer)", lambda row: row["source"] == "transformer"),
)


def split(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by source, and those of a source with both dense models and mixtures of experts apart as well."""
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
    """Sources that ran configurations several times, forecast with and without having seen another such run."""
    lines = []
    for name, members in split(rows):
        known = [row for row in members if row.get("repeat_seen") is not None]
        if known:
            made = [errors(known, field) for field in ("calibrated", "repeat_seen")]
            lines.append([name, f"{len(known):,}", *(cell for e in made for cell in pair(e, len(known)))])
    if not lines:
        return ""
    said = (
        "Some sources ran a configuration several times, in several releases. *Calibrated* leaves all of them out at "
        "once; with *another seen*, only the run itself is left out."
    )
    columns = ["source", "runs", "calibrated mean", "calibrated median", "another seen mean", "another seen median"]
    return "\n\n".join(["#### Configurations that were run again", prose(said), table(columns, lines)])


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
        "how its figure came to be",
    ]
    said = (
        "Beside what other tools claim or reach on the same rows. All figures but the range of SimuMax are mean "
        "errors. Our calibrated ones are on runs that the fit had not seen. Of the two models of `calculon_seqsel`, "
        "*unseen models* leaves out one at a time."
    )
    shown = table(columns, lines, numbers=(2, 3, 4, 5))
    return "\n\n".join(["#### Others on the same rows", prose(said), shown])


def modes(rows: Sequence[Row]) -> str:
    """Sources whose runs fall into two modes, each apart."""
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
            f"Some runs of `{source}` stall: every message between stages takes longer, for no reason that their "
            "configuration shows. A run counts as stalled if its time is nearer the calibrated time with stalls than "
            "the one without, as ratios. *Mode known* is the forecast in that mode: what could be reached at best. "
            f"The right mode was forecast for {share(_right(known))} of the {len(known):,} runs, and for "
            f"{share(_right(apart))} of the {len(apart):,} whose two times differ by more than "
            f"{share(_MODES_DIFFER - 1.0)}; to say that none stalls is right for {share(_never(known))} and "
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
        f"All runs count alike, and {len(largest[1]):,} of the {len(steps):,} of language models are of "
        f"`{largest[0]}`: look at how many sources a line stands on."
    )
    parts = ["## Errors taken apart", prose(said)]
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
        "A cluster that nobody calibrated. The interval comes from the errors of all other sources, each counting "
        "alike. Families of data-parallel models count as sources here, though one publisher measured them all."
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
        of = kept.get(name, kept.get("deep-learning-examples", []) if name == "all others" else [])
        share = f"{sum(bool(g['correction']) for g in of)} of {len(of)}" if of else "–"
        lines.append([name, f"{len(rows):,}", share, *(percent(errors(rows, field).mean) for field in fields)])
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
        "So many runs are drawn at random, a cluster is calibrated with them, and others are forecast: the mean "
        f"error over eight draws. Groups of a source count by their runs ({shown}). Slow modes cannot be told from "
        "so few runs: all are forecast in the usual one here, and those that stalled are missed whatever a "
        "calibration has seen."
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
        [name, percent(p.mean), percent(p.median), share(p.best), "–" if name == _RANDOM else number(p.rank)]
        for name, p in made
    ]
    said = (
        f"`ultrascale` measured many strategies for each model, number of GPUs and batch: {len(groups)} such groups "
        f"have at least {_FEWEST_TO_PICK} runs ({sum(map(len, groups)):,} in all). In each, the run with the "
        "shortest forecast is picked; *regret* is how much longer it took than the best. Calibrated forecasts have "
        "not seen the run. With the chance p of a stall counted, a run is expected to take (1−p)·usual + p·stalled."
    )
    columns = ["picked by", "mean regret", "median regret", "best picked", "rank corr. in groups"]
    return "\n\n".join(["## Picking the best strategy", prose(said), table(columns, lines)])
