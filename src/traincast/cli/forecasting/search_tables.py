"""Tables of ``traincast search``: the best strategies, clusters, naive choices and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from traincast.cli.output import console, print_table, print_warnings
from traincast.units import format_bytes, format_money, format_parameters, format_seconds

if TYPE_CHECKING:
    from traincast.cluster import Cluster
    from traincast.searching.answer import Answer, Candidate, Place


_NARROWEST: Final = 26
"""Least width of the column of strategies, in characters."""
_FRONT: Final = 6
"""Most points of the Pareto front to show."""
_NOTABLE: Final = 0.05
"""A device counts as unmeasured if at least this share of its time is on operators not measured on it."""
_WORDS: Final = {
    "time": "fastest",
    "cost": "cheapest",
    "energy": "least energy",
    "memory": "least memory",
    "robust": "least regret",
}


def show(answer: Answer, *, explain: bool) -> None:
    """Print the tables, then figures of the search, then warnings: all of them with ``explain``."""
    out = console()
    several = len(answer.requests) > 1
    report = answer.best.report
    where = f"{len(answer.requests)} clusters" if several else report.cluster
    out.print(f"[bold]{answer.model}[/bold] on {where}", highlight=False)
    tokens = f" × {report.tokens_per_sample} tokens" if report.tokens_per_sample else ""
    out.print(
        f"global batch {answer.global_batch}{tokens} · {answer.precision} · {answer.runtime} · "
        f"{format_parameters(report.num_parameters, report.num_trainable_parameters)} · "
        f"{_WORDS[answer.objective]} first"
    )
    _show_candidates(answer, several=several)
    out.print(f"{_sureness(answer)}\n")
    for line in _evidence(answer):
        out.print(f"{line}\n", highlight=False)
    if several:
        _show_clusters(answer)
    _show_naive(answer)
    if len(answer.pareto) > 1:
        _show_front(answer, several=several)
    counts = answer.counts
    rate = f"{counts.evaluated / counts.cpu_s:,.0f} strategies per CPU second, " if counts.cpu_s else ""
    out.print(
        f"{counts.evaluated:,} strategies evaluated, {counts.feasible:,} fit; families: {counts.families:,} evaluated, "
        f"{counts.behind:,} cut by a bound, {counts.needless:,} unnecessary, {counts.beyond:,} too large for memory"
    )
    out.print(f"{format_seconds(answer.seconds)}, {rate}{answer.searcher}, {answer.engine}")
    print_warnings(answer.warnings, explain=explain)


def _sureness(answer: Answer) -> str:
    """Return sentences with the chances that the first strategy is the best and meets the limits of the job."""
    ties = [n for n, candidate in enumerate(answer.candidates, 1) if candidate.tie]
    alike = f"{_numbers(ties)} may be as good" if ties else "no other may be as good"
    if answer.objective == "memory":
        same = f"; {_numbers(ties)} need as much" if ties else ""
        return f"The order is by computed memory: the first strategy needs the least{same}."
    said = f"The first strategy has a {answer.sure:.0%} chance of being the best of those compared; {alike}."
    if answer.best.regret is not None:
        said += f" Its expected loss against the best is {answer.best.regret:.1%}."
    chances = [
        (c, name)
        for c, name in (
            (answer.best.in_time, "meeting the deadline"),
            (answer.best.in_budget, "staying within the budget"),
        )
        if c is not None
    ]
    if chances:
        said += " It has " + " and ".join(f"a {c:.0%} chance of {name}" for c, name in chances)
        said += f" (required: {answer.limits.confidence:.0%})."
    return said


def _evidence(answer: Answer) -> list[str]:
    """Return what a reader must know about techniques that no measured run near this one has used."""
    if answer.objective == "memory":
        return []
    said = []
    if any(c.marked for c in answer.candidates):
        said.append(
            "* uses a technique that no measured run near this one has used, and is expected to take longer than "
            "forecast; the order is by expected time."
        )
    if answer.best.marked:
        said.append(f"{_missing(answer.best)} The first strategy comes first all the same: {answer.reason}.")
    fastest = answer.fastest
    if fastest.marked and fastest.strategy != answer.best.strategy:
        forecast, expected = fastest.report.step_s, fastest.report.step_s * fastest.expected
        said.append(
            f"The fastest forecast of all is {fastest.strategy}: {format_seconds(forecast)}, expected "
            f"{format_seconds(expected)}. {_missing(fastest)}"
        )
    return said


def _missing(candidate: Candidate) -> str:
    """Return a sentence with the techniques of a candidate that have no evidence."""
    return "Without evidence: " + "; ".join(e.words for e in candidate.evidence if not e.supported) + "."


def _numbers(ranks: Sequence[int]) -> str:
    """Return ranks as text, such as ``2–4, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)


def _show_candidates(answer: Answer, *, several: bool) -> None:
    """Print the best strategies; each takes two lines if there are several clusters or a job."""
    tall = several or answer.best.job is not None
    names = ["#", "strategy", "step", "90 % interval", "MFU", "memory", "limited by", "behind", "chance"]
    rows = []
    for rank, c in enumerate(answer.candidates, 1):
        r = c.report
        row = [
            str(rank),
            f"{c.strategy}{' *' if c.marked else ''}",
            format_seconds(r.step_s),
            f"{format_seconds(r.low_s)} … {format_seconds(r.high_s)}",
            f"{r.mfu:.1%}",
            format_bytes(r.peak_memory_bytes),
            c.limiter,
            _behind(c.behind) if rank > 1 else "",
            f"{c.chance:.0%}{' tie' if c.tie else ''}" if c.chance >= 0.005 or c.tie else "–",
        ]
        if tall:
            row[2:4] = [f"{row[2]}\n{row[3]}"]
        if c.job:
            row.insert(-2, f"{format_seconds(c.job.job_s)}\n{format_money(c.job.cost)}")
        rows.append(row)
    if tall:
        names[2:4] = ["step\n90 % interval"]
    if answer.best.job:
        names.insert(-2, "job\ncost")
    right = [n for n, name in enumerate(names) if name not in ("strategy", "limited by", "chance")]
    _print_strategies(
        "", names, rows, right=right, places=[_name(c.request.cluster) for c in answer.candidates] if several else []
    )


def _show_clusters(answer: Answer) -> None:
    """Print the best strategy on each cluster, or why there is none."""
    steps = answer.limits.num_steps
    rows = []
    for place in answer.places:
        best = place.best
        figures = ["", "", ""]
        if best is not None:
            figures = [
                format_seconds(best.report.step_s),
                format_seconds(best.job.job_s) if best.job else "",
                format_money(best.cost),
            ]
        rows.append([place.name, *figures, _against(place), f"{place.chance:.0%}" if place.ratio[1] else "–"])
    names = ["cluster", "step", "job", "cost", "against the first", "chance"]
    if steps is None:
        rows, names = [[*r[:2], *r[3:]] for r in rows], [*names[:2], *names[3:]]
    unmeasured = {p.request.cluster.device.name: p.unmeasured for p in answer.places if p.unmeasured >= _NOTABLE}
    print_table("best strategy on each cluster", names, rows, right=range(1, len(names) - 2))
    console().print(
        "Against the first: 90 % interval of the ratio to the first strategy. Chance: that the best strategy of all "
        "runs on this cluster. Errors in each device's speed and in each cluster's links are drawn independently."
        + "".join(
            f" {device} was not measured: {share:.0%} of its operators' time is estimated from other devices."
            for device, share in unmeasured.items()
        )
        + "\n"
    )


def _against(place: Place) -> str:
    """Return the ratio of a cluster's best strategy to the first of all, or why the cluster is ruled out."""
    if place.status != "ok":
        return f"{place.status}: {place.reason}"
    if not place.ratio[1]:
        return _behind(place.best.behind) if place.best else ""
    low, high = place.ratio
    return "the first" if low == high == 1.0 else f"{low:.2f} … {high:.2f} ×"


def _show_naive(answer: Answer) -> None:
    rows = []
    for choice in answer.naive:
        c = choice.candidate
        if c is None:
            rows.append([choice.name, "", "", choice.reason])
            continue
        ahead = "is the best" if c.strategy == answer.best.strategy and c.behind == 0.0 else f"{_behind(c.behind)}"
        rows.append([choice.name, str(c.strategy), format_seconds(c.report.step_s), choice.reason or ahead])
    place = f", on {_name(answer.requests[0].cluster)}" if len(answer.requests) > 1 else ""
    _print_strategies(
        f"strategies chosen without a search{place}", ["choice", "strategy", "step", "behind"], rows, right=(2,)
    )


def _show_front(answer: Answer, *, several: bool) -> None:
    """Print the Pareto front; if it has many points, only some, evenly spaced."""
    every = answer.pareto
    count = min(_FRONT, len(every))
    shown = [every[round(n * (len(every) - 1) / max(1, count - 1))] for n in range(count)]
    rows = [
        [
            str(c.strategy),
            format_seconds(c.report.step_s),
            format_bytes(c.report.peak_memory_bytes),
            format_money(c.cost),
        ]
        for c in shown
    ]
    names = ["strategy", "step", "memory", "cost of the job" if answer.best.job else "cost of a step"]
    title = "strategies that no other beats in time, memory and cost"
    if len(shown) < len(every):
        title += f" ({len(shown)} of {len(every)}; --json and --html list all)"
    places = [_name(c.request.cluster) for c in shown] if several else []
    _print_strategies(title, names, rows, right=(1, 2, 3), places=places)


def _print_strategies(
    title: str, names: Sequence[str], rows: Sequence[list[str]], *, right: Sequence[int], places: Sequence[str] = ()
) -> None:
    """Print a table whose column of strategies takes the remaining width; long strategies break after commas.

    If ``places`` are given, the name of its cluster is printed above each strategy.
    """
    at = list(names).index("strategy")
    cells = [[*names], *rows]
    others = sum(max(len(line) for row in cells for line in row[n].split("\n")) for n in range(len(names)) if n != at)
    width = max(_NARROWEST, console().width - others - 3 * len(names))
    for n, row in enumerate(rows):
        row[at] = _folded(row[at], width)
        if places:
            row[at] = f"{places[n]}\n{row[at]}"
    print_table(title, names, rows, right=right)


def _folded(strategy: str, width: int) -> str:
    """Return a strategy broken into lines of at most ``width`` characters, where its commas allow."""
    lines = [""]
    parts = strategy.split(",")
    for n, part in enumerate(parts):
        piece = part + ("," if n < len(parts) - 1 else "")
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _name(cluster: Cluster) -> str:
    return f"{cluster.num_nodes} × {cluster.name}"


def _behind(share: float) -> str:
    """Return how much more a strategy takes than the best: ``+3.1%``, or ``2.5 ×`` from twice as much."""
    return f"{1.0 + share:.3g} ×" if share >= 1.0 else f"{share:+.1%}"
