"""``traincast search``: the best strategies for a model, on one cluster or on the best of several."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from traincast.cli.exporting import exported, runtime_for, show_export
from traincast.cli.output import console, input_files, print_json, print_table, progress_bar, traced
from traincast.errors import FileFormatError, RequestError, StrategyError, UnknownNameError
from traincast.files import check_outputs
from traincast.units import (
    format_bytes,
    format_money,
    format_parameters,
    format_seconds,
    parse_count,
    parse_duration,
)

if TYPE_CHECKING:
    from traincast.cluster import Cluster
    from traincast.searching.answer import Answer, Place
    from traincast.searching.problem import Objective
    from traincast.strategy import Request

_NARROWEST: Final = 26
"""Characters that a strategy gets in a table at least."""
_FRONT: Final = 6
"""Points of the front that are shown."""
_NOTABLE: Final = 0.05
"""From which share of its time on operators that were not measured on a device are spoken of."""
_WORDS: Final = {"time": "fastest", "cost": "cheapest", "energy": "least energy", "memory": "least memory"}


@click.command(short_help="Find the best strategies, and how sure that is.")
@click.argument("model")
@click.option(
    "--cluster",
    required=True,
    metavar="NAME[:NODES]",
    help="Cluster, node type or .toml file; dgx-h100:1x2 is part of a node.",
)
@click.option("--global-batch", required=True, metavar="N", help="Samples per step, over all devices.")
@click.option("--seq", metavar="N", help="Tokens per sample, for sequence models.")
@click.option("--precision", metavar="NAME", help="fp32, tf32, amp, amp-bf16, fp16, bf16, fp8 or nvfp4.")
@click.option("--runtime", metavar="NAME", help="Training framework, or a .toml file; see `traincast runtimes`.")
@click.option("--objective", metavar="NAME", help="time, cost, energy or memory; time unless a deadline is given.")
@click.option("--top", default="10", show_default=True, metavar="N", help="How many strategies to show.")
@click.option("--constraint", multiple=True, metavar="TEXT", help="Limits, such as memory<=70GB,tp<=8,zero=1|3.")
@click.option("--nodes", metavar="8..128", help="Numbers of nodes to choose from: doublings of a range, or a list.")
@click.option("--devices", metavar="NAME,…", help="Devices or node types to choose from, such as h100,h200.")
@click.option("--tokens", metavar="N", help="Length of the job in tokens, such as 1e12.")
@click.option("--samples", metavar="N", help="Length of the job in samples.")
@click.option("--steps", metavar="N", help="Length of the job in steps.")
@click.option(
    "--deadline", metavar="14d", help="How long the job may take: the cheapest way that is likely to is looked for."
)
@click.option(
    "--budget",
    metavar="2e6",
    help="What the job may cost, in US dollars: the fastest way that is likely to is looked for.",
)
@click.option(
    "--confidence",
    default="80%",
    show_default=True,
    metavar="CHANCE",
    help="How likely a job must meet its deadline and budget, such as 0.9 or 90%.",
)
@click.option("--searcher", default="auto", metavar="NAME", help="auto, exhaustive, branch-and-bound or annealing.")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of annealing and of what is drawn.")
@click.option("--engine", default="local", metavar="NAME", help="Where it runs: local or ray.")
@click.option("--workers", metavar="N", help="Parts that are searched at once; as many as there are processors.")
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster; one is started here when left out.")
@click.option("--resume", metavar="FOLDER", help="Keep finished parts there, and go on with those that are.")
@click.option(
    "--export",
    metavar="NAME",
    help="megatron, torchtitan, deepspeed or nanotron: what it can run, timed with its runtime, as it reads it.",
)
@click.option("--all-out", metavar="FILE.parquet", help="Write every candidate.")
@click.option("--html", metavar="FILE", help="Write one self-contained page.")
@click.option("--bundle", multiple=True, metavar="BUNDLE", help="Fitted times to ask before the shipped ones.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache of traced models.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def search(
    context: click.Context,
    model: str,
    cluster: str,
    global_batch: str,
    seq: str | None,
    precision: str | None,
    runtime: str | None,
    objective: str | None,
    top: str,
    constraint: tuple[str, ...],
    nodes: str | None,
    devices: str | None,
    tokens: str | None,
    samples: str | None,
    steps: str | None,
    deadline: str | None,
    budget: str | None,
    confidence: str,
    searcher: str,
    seed: int,
    engine: str,
    workers: str | None,
    address: str | None,
    resume: str | None,
    export: str | None,
    all_out: str | None,
    html: str | None,
    bundle: tuple[str, ...],
    no_cache: bool,
    as_json: bool,
) -> None:
    """Find the best strategies for MODEL on a cluster: all that is legal, as far as it fits in memory.

    MODEL is what `traincast predict` takes. With --nodes or --devices the cluster is chosen as well.
    """
    from traincast.cluster import load_cluster
    from traincast.engines import load_engine
    from traincast.estimate import learned_cost_model
    from traincast.searching.choices import parse_nodes
    from traincast.searching.search import search as find_best

    inputs = input_files({"MODEL": model, "--cluster": cluster, "--runtime": runtime})
    _check_outputs(all_out=all_out, html=html, resume=resume, inputs=inputs)
    if seed < 0:
        raise RequestError(f"--seed {seed}: expected a number from 0 on")
    batch, _ = parse_count(global_batch, what="--global-batch"), load_cluster(cluster)
    graph = traced(model, seq=seq, use_cache=not no_cache)
    refusals: list[str] = []
    with _limited_to(export, refusals), progress_bar("strategies") as progress:
        answer = find_best(
            graph,
            cluster=cluster,
            global_batch=batch,
            precision=precision,
            runtime=runtime_for(export, runtime),
            objective=_objective(objective, deadline),
            top=parse_count(top, what="--top"),
            constraint=",".join([*_expressible(export, model), *constraint]),
            nodes=() if nodes is None else parse_nodes(nodes),
            devices=() if devices is None else _names(devices),
            tokens=_count(tokens, "--tokens"),
            samples=_count(samples, "--samples"),
            steps=_count(steps, "--steps"),
            deadline_s=None if deadline is None else parse_duration(deadline, what="--deadline"),
            budget=None if budget is None else float(parse_count(budget, what="--budget")),
            confidence=_chance(confidence),
            searcher=searcher,
            engine=load_engine(engine, workers=_count(workers, "--workers"), address=address),
            engine_name=engine,
            resume=None if resume is None else Path(resume),
            progress=progress,
            cost_model=learned_cost_model([Path(path) for path in bundle]) if bundle else None,
            accepts=None if export is None else _accepts(export, refusals),
            seed=seed,
        )
    text = exported(answer.best.request, export)
    written = _write(answer, all_out=all_out, html=html)
    if as_json:
        print_json({**answer.as_dict(), "export": text})
        return
    _show(answer)
    _say_how_to_see_more(context, answer)
    for what, path in written:
        console().print(f"{what}: {path}")
    show_export(text, "the first")


def _check_outputs(*, all_out: str | None, html: str | None, resume: str | None, inputs: Mapping[str, Path]) -> None:
    """Refuse what cannot be written before anything is searched."""
    if all_out is not None and not all_out.endswith(".parquet"):
        raise RequestError(
            f"cannot write {all_out}: a table of candidates is Parquet, so its name must end in .parquet"
        )
    outputs = {"--all-out": all_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs=inputs)
    if resume is not None and Path(resume).exists() and not Path(resume).is_dir():
        raise FileFormatError(f"cannot keep parts of a search in {resume}: it is no folder; name another one")


def _objective(said: str | None, deadline: str | None) -> Objective:
    """What was said, or what a deadline leaves to ask for: the cheapest way to meet it."""
    from traincast.searching.problem import OBJECTIVES

    if said is None:
        return "time" if deadline is None else "cost"
    for objective in OBJECTIVES:
        if said == objective:
            return objective
    raise UnknownNameError("objective", said, OBJECTIVES)


def _count(text: str | None, what: str) -> int | None:
    return None if text is None else parse_count(text, what=what)


def _chance(text: str) -> float:
    """``0.9`` or ``90%``, strictly between 0 and 1."""
    try:
        chance = float(text.removesuffix("%")) * (0.01 if text.endswith("%") else 1.0)
    except ValueError:
        chance = 0.0
    if not 0.0 < chance < 1.0:
        raise RequestError(f"--confidence {text}: expected a chance between 0 and 1, such as 0.9 or 90%")
    return chance


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise RequestError(f"--devices {text!r}: expected names of devices or node types, such as h100,h200")
    return found


@contextmanager
def _limited_to(framework: str | None, refusals: list[str]) -> Iterator[None]:
    """Say so where nothing is left because of what a framework can express; ``refusals`` are its own words."""
    try:
        yield
    except StrategyError as error:
        if framework is not None and str(error).startswith("no value of"):
            raise StrategyError(f"{error}, as far as {framework} has them") from error
        if refusals and "accepted" in str(error):
            raise StrategyError(f"{framework} runs none of the strategies that were found: {refusals[0]}") from error
        raise


def _accepts(framework: str, refusals: list[str]) -> Callable[[Request], bool]:
    """Whether a strategy can be written for a framework; why the first one cannot is kept."""
    from traincast.export import export

    def accepts(request: Request) -> bool:
        try:
            export(request, framework)
        except StrategyError as error:
            if not refusals:
                refusals.append(str(error))
            return False
        return True

    return accepts


def _expressible(framework: str | None, model: str) -> list[str]:
    """What a framework can express, axis by axis; what it can of their products is asked candidate by candidate."""
    from traincast.export import axes_of

    return [] if framework is None else [axes_of(framework, model)]


def _write(answer: Answer, *, all_out: str | None, html: str | None) -> list[tuple[str, str]]:
    """Write the files asked for."""
    written = []
    if all_out is not None:
        from traincast.searching.table import write_table

        count = write_table(answer, Path(all_out))
        written.append((f"all {count:,} candidates", all_out))
    if html is not None:
        from traincast.searching.page import write_page

        write_page(answer, Path(html))
        written.append(("page", html))
    return written


def _show(answer: Answer) -> None:
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
    if several:
        _show_clusters(answer)
    _show_naive(answer)
    if len(answer.pareto) > 1:
        _show_front(answer, several=several)
    counts = answer.counts
    rate = f"{counts.evaluated / counts.cpu_s:,.0f} strategies per CPU second, " if counts.cpu_s else ""
    out.print(
        f"{counts.evaluated:,} strategies evaluated, {counts.feasible:,} fit; families: {counts.families:,} looked at, "
        f"{counts.behind:,} cut by a bound, {counts.needless:,} needless, {counts.beyond:,} beyond memory"
    )
    out.print(f"{format_seconds(answer.seconds)}, {rate}{answer.searcher}, {answer.engine}")
    for warning in answer.warnings:
        out.print(f"[yellow]warning:[/yellow] {warning}")


def _sureness(answer: Answer) -> str:
    """How sure it is that the first is the best, in a sentence."""
    ties = [n for n, candidate in enumerate(answer.candidates, 1) if candidate.tie]
    alike = f"{_numbers(ties)} may be as good" if ties else "no other one may be as good"
    if answer.objective == "memory":
        same = f", {_numbers(ties)} as much" if ties else ""
        return f"Memory is counted, not estimated: the first needs least{same}."
    said = f"The first is the best of those compared with a chance of {answer.sure:.0%}; {alike}."
    chances = [
        (c, name)
        for c, name in ((answer.best.in_time, "meets the deadline"), (answer.best.in_budget, "keeps to the budget"))
        if c is not None
    ]
    if chances:
        said += " It " + " and ".join(f"{name} with a chance of {c:.0%}" for c, name in chances)
        said += f"; asked for: {answer.limits.confidence:.0%}."
    return said


def _numbers(ranks: Sequence[int]) -> str:
    """``2–4, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)


def _show_candidates(answer: Answer, *, several: bool) -> None:
    """The best strategies; with clusters or a job to name as well, on several lines each."""
    tall = several or answer.best.job is not None
    names = ["#", "strategy", "step", "90 % interval", "MFU", "memory", "limited by", "behind", "chance"]
    rows = []
    for rank, c in enumerate(answer.candidates, 1):
        r = c.report
        row = [
            str(rank),
            str(c.strategy),
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
    """The best strategy on each cluster, or why there is none that will do."""
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
    print_table("clusters: the best on each", names, rows, right=range(1, len(names) - 2))
    console().print(
        "Against the first: 90 % interval of the ratio. Chance: that the best of all is there. What is not known of a "
        "device, or of a cluster's links, is drawn for each by itself."
        + "".join(
            f" {device} was not measured: {share:.0%} of its operators' time is estimated from other devices."
            for device, share in unmeasured.items()
        )
        + "\n"
    )


def _against(place: Place) -> str:
    """How the best of a place compares with the first of all, or why it is out."""
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
    _print_strategies(f"without a search{place}", ["choice", "strategy", "step", "behind"], rows, right=(2,))


def _show_front(answer: Answer, *, several: bool) -> None:
    """The front; of many points some, evenly spaced."""
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
    title = "no other beats these in time, memory and cost"
    if len(shown) < len(every):
        title += f" ({len(shown)} of {len(every)}; --json and --html have them all)"
    places = [_name(c.request.cluster) for c in shown] if several else []
    _print_strategies(title, names, rows, right=(1, 2, 3), places=places)


def _print_strategies(
    title: str, names: Sequence[str], rows: Sequence[list[str]], *, right: Sequence[int], places: Sequence[str] = ()
) -> None:
    """A table whose column of strategies is as wide as there is room, with its lines broken after commas.

    Where ``places`` are given, each strategy stands below its place.
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
    """A strategy on as many lines as it needs."""
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
    """How much more it takes than the best."""
    return f"{1.0 + share:.3g} ×" if share >= 1.0 else f"{share:+.1%}"


def _say_how_to_see_more(context: click.Context, answer: Answer) -> None:
    """The command that forecasts the first in full."""
    given = context.params
    place = answer.best.request.cluster
    cluster = given["cluster"]
    if given["nodes"] or given["devices"]:
        if cluster.partition(":")[0].endswith(".toml"):
            return
        cluster = f"{place.name}:{place.num_nodes}"
    words = ["traincast", "predict", given["model"], "--cluster", cluster, "--global-batch", given["global_batch"]]
    asked = {**given, "runtime": runtime_for(given["export"], given["runtime"])}
    for name in ("seq", "precision", "runtime", "tokens", "samples", "steps"):
        words += [f"--{name}", asked[name]] if asked[name] else []
    words += ["--strategy", str(answer.best.strategy)]
    click.echo(f"the first in full: {shlex.join(words)}")
