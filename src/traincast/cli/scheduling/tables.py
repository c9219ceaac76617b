"""Tables of ``traincast schedule``: one policy, several side by side, and studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from traincast.cli.output import console, plain, print_table
from traincast.units import HOUR, format_seconds

if TYPE_CHECKING:
    from traincast.scheduling import Metrics
    from traincast.scheduling.schedule import Schedule
    from traincast.scheduling.study import StudyCase, StudyRow


_SHARE_FIGURES: Final = ("mean_jct_s", "mean_queue_s", "makespan_s", "utilization", "mean_slowdown")


def shares_data(by_share: Mapping[str, Schedule]) -> dict[str, Any]:
    """Return the figures of every way to share, for JSON; ``gain`` is by how much the mean JCT is below the first's."""
    if not by_share:
        return {}
    first = next(iter(by_share.values())).metrics.mean_jct_s
    return {
        "share": [
            {
                "share": name,
                "placement": run.outcome.placement,
                **{figure: getattr(run.metrics, figure) for figure in _SHARE_FIGURES},
                "gain": 1.0 - run.metrics.mean_jct_s / first,
            }
            for name, run in by_share.items()
        ]
    }


def show_shares(by_share: Mapping[str, Schedule]) -> None:
    """Print one line for every way to share nodes, if there are several."""
    if len(by_share) < 2:
        return
    rows = [
        (
            entry["share"],
            format_seconds(entry["mean_jct_s"]),
            f"{entry['gain']:+.1%}",
            format_seconds(entry["mean_queue_s"]) if entry["mean_queue_s"] else "0 s",
            format_seconds(entry["makespan_s"]),
            f"{entry['utilization']:.1%}",
            f"{entry['mean_slowdown']:.3f}",
        )
        for entry in shares_data(by_share)["share"]
    ]
    columns = ("nodes", "JCT", "gain", "queue", "span", "used", "slowdown")
    print_table("what sharing nodes gains", columns, rows, right=range(1, 7))


_MOST_VCS: Final = 20


def means(rows: Sequence[StudyRow]) -> dict[StudyCase, Metrics]:
    """Return the mean of each figure over seeds, by case (its seed is set to 0); a mean of counts may be fractional."""
    groups: dict[StudyCase, list[Metrics]] = {}
    for row in rows:
        groups.setdefault(row.case._replace(seed=0), []).append(row.metrics)
    return {
        case: replace(
            found[0],
            **{name: sum(getattr(each, name) for each in found) / len(found) for name in asdict(found[0])},
        )
        for case, found in groups.items()
    }


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "0 s"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _gpu_hours(value: float) -> str:
    return f"{max(0.0, value) / HOUR:,.1f}"  # rounding may put an overhead of 0 just below 0


def _two(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


_FIGURES: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("JCT", "mean_jct_s", _time),
    ("median", "median_jct_s", _time),
    ("p99", "p99_jct_s", _time),
    ("queue", "mean_queue_s", _time),
    ("span", "makespan_s", _time),
    ("used", "utilization", _percent),
    ("fragm.", "fragmentation", _percent),
    ("preempt", "preemptions", _count),
    ("restart", "restarts", _count),
    ("lost", "lost_gpu_s", _gpu_hours),
    ("ρ", "mean_rho", _two),
    ("max ρ", "max_rho", _two),
)
"""Columns of a table: heading, field, and the function that formats it."""


def _columns(all_metrics: Sequence[Metrics]) -> list[int]:
    """Return the indices of the figures to show; figures of failures only if there was a restart."""
    quiet = not any(m.restarts for m in all_metrics)
    return [at for at, (_, field, _) in enumerate(_FIGURES) if not (quiet and field in ("restarts", "lost_gpu_s"))]


def show(runs: Sequence[Schedule], rows: Sequence[StudyRow]) -> None:
    """Print the results: the runs made in this process, and the rows of a study."""
    first, out = runs[0], console()
    queue = first.queue
    types = ", ".join(sorted({node.gpu_type for node in queue.cluster.nodes if node.gpu_type}))
    gpus = f"{queue.cluster.num_gpus:,} GPUs{f' ({plain(types)})' if types else ''}"
    where = f"{len(queue.cluster.nodes):,} nodes with {gpus}"
    out.print(f"[bold]{plain(str(queue.log.path))}[/bold]: {len(first.jobs):,} jobs on {where}", soft_wrap=True)
    said = [f"{first.outcome.placement} placement", f"{queue.estimates} estimates"]
    if queue.load != 1:
        said.append(f"load × {queue.load:g}")
    out.print(plain(" · ".join(said)), style="dim")
    if rows:
        _show_study(rows)
    elif len(runs) == 1:
        _show_one(first)
    else:
        shown = _columns([run.metrics for run in runs])
        print_table(
            "policies side by side",
            ["policy", *(_FIGURES[at][0] for at in shown)],
            _same_units([(_short(run.policy), run.metrics) for run in runs], shown),
            right=range(1, len(shown) + 1),
        )
    if not rows or len(runs) > 1:
        _show_vcs(runs)


def _show_study(rows: Sequence[StudyRow]) -> None:
    """Print one line per case with means over its seeds; with several estimates, also the loss that each causes."""
    averages = means(rows)
    num_seeds = len({row.case.seed for row in rows})
    several = [name for name in ("estimates", "load") if len({getattr(case, name) for case in averages}) > 1]
    shown = _columns(list(averages.values()))
    labels = [" · ".join([_short(case.policy), *(f"{getattr(case, name)}" for name in several)]) for case in averages]
    print_table(
        f"means over {num_seeds} seeds" if num_seeds > 1 else "study",
        [" · ".join(["policy", *several]), *(_FIGURES[at][0] for at in shown)],
        _same_units(list(zip(labels, averages.values(), strict=True)), shown),
        right=range(1, len(shown) + 1),
    )
    if "estimates" not in several:
        return
    from traincast.scheduling.study import regrets

    against = rows[0].case.estimates
    lines = [
        [_short(found.policy), plain(found.estimates), *([f"{found.load:g}"] if "load" in several else []),
         f"{found.loss:+.1%}", f"{found.low:+.1%} … {found.high:+.1%}"]
        for found in regrets(rows, against=against)
        if found.estimates != against
    ]  # fmt: skip
    columns = ["policy", "estimates", *(["load"] if "load" in several else []), "mean JCT", "range over seeds"]
    print_table(
        f"change caused by estimates, compared with {plain(against)}", columns, lines, right=range(2, len(columns))
    )


def _same_units(rows: Sequence[tuple[str, Metrics]], shown: Sequence[int]) -> list[list[str]]:
    """Return one line per name; all times of a column have the same unit, so that they can be compared."""
    made = [[name] for name, _ in rows]
    for at in shown:
        _, field, form = _FIGURES[at]
        values = [getattr(metrics, field) for _, metrics in rows]
        if form is _time:
            unit, scale = _unit(median(values))
            texts = [f"{value / scale:.{2 if value / scale < 100 else 0}f} {unit}" for value in values]
        else:
            texts = [form(value) for value in values]
        for line, text in zip(made, texts, strict=True):
            line.append(text)
    return made


def _unit(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds < 180 else ("min", 60.0) if seconds < 2 * HOUR else ("h", HOUR)


def _show_one(run: Schedule) -> None:
    from rich import box
    from rich.table import Table

    found = run.metrics
    rows: list[Sequence[str] | None] = [
        ("policy", plain(run.policy), ""),
        None,
        ["completion time, mean", _time(found.mean_jct_s), "from submission to end"],
        ["  median", _time(found.median_jct_s), ""],
        ["  99th percentile", _time(found.p99_jct_s), ""],
        ["queueing, mean", _time(found.mean_queue_s), "time without GPUs"],
        ["  median", _time(found.median_queue_s), ""],
        ["  99th percentile", _time(found.p99_queue_s), ""],
        ["makespan", _time(found.makespan_s), "from the first submission to the last end"],
        None,
        ["utilization", f"{found.utilization:.1%}", "of the GPU time was held by jobs"],
        ["goodput", f"{found.goodput:.1%}", "of the held time was neither overhead nor lost to failures"],
        ["fragmentation", f"{found.fragmentation:.1%}", "of the free GPU time was on nodes partly in use"],
        ["idle while jobs wait", f"{found.idle_while_waiting:.1%}", "of the GPU time"],
        ["preemptions", f"{found.preemptions:,}", f"{_gpu_hours(found.overhead_gpu_s)} GPU hours of overhead"],
        ["restarts", f"{found.restarts:,}", f"{_gpu_hours(found.lost_gpu_s)} GPU hours of work lost to failures"],
        ["finish-time fairness ρ", f"{found.mean_rho:.2f}", f"on average; at worst {found.max_rho:.1f}; 1 is fair"],
    ]
    if any(job.deadline_s is not None for job in run.jobs):
        rows.append(["deadlines met", f"{found.deadlines_met:.1%}", ""])
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    console().print(table)


def _show_vcs(runs: Sequence[Schedule]) -> None:
    """Print virtual clusters, the largest first: all figures of one policy, or mean completion times of several."""
    found = runs[0].by_vc
    if len(found) < 2:
        return
    names = sorted(found, key=lambda vc: -found[vc].num_jobs)[:_MOST_VCS]
    left = f"; --json lists {len(found) - len(names)} more" if len(found) > len(names) else ""
    if len(runs) == 1:
        hidden = ("fragmentation", "makespan_s")
        shown = [at for at in _columns(list(found.values())) if _FIGURES[at][1] not in hidden]
        columns = ["virtual cluster", "jobs", *(_FIGURES[at][0] for at in shown)]
        lines = _same_units([(plain(vc) or "–", found[vc]) for vc in names], shown)
        rows = [[line[0], f"{found[vc].num_jobs:,}", *line[1:]] for vc, line in zip(names, lines, strict=True)]
        print_table(f"by virtual cluster{left}", columns, rows, right=range(1, len(columns)))
        return
    columns = ["virtual cluster", "jobs", *(_short(run.policy) for run in runs)]
    rows = [
        [plain(vc) or "–", f"{found[vc].num_jobs:,}", *(_time(run.by_vc[vc].mean_jct_s) for run in runs)]
        for vc in names
    ]
    print_table(f"mean completion time by virtual cluster{left}", columns, rows, right=range(1, len(columns)))


def _short(policy: str) -> str:
    """Return the name of a policy for a table; of ``package.module:Class``, the class alone."""
    return plain(policy.rpartition(":")[2])
