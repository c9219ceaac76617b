"""``traincast search``: the best strategies for a model, on one cluster or on the best of several."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli.exporting import exported, runtime_for, show_export
from traincast.cli.output import console, input_files, print_json, progress_bar, traced
from traincast.cli.search_tables import show
from traincast.errors import FileFormatError, RequestError, StrategyError, UnknownNameError
from traincast.files import check_outputs
from traincast.units import parse_count, parse_duration

if TYPE_CHECKING:
    from traincast.searching.answer import Answer
    from traincast.searching.problem import Objective
    from traincast.strategy import Request


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
    _tell(context, answer, export=export, all_out=all_out, html=html, as_json=as_json)


def _check_outputs(*, all_out: str | None, html: str | None, resume: str | None, inputs: Mapping[str, Path]) -> None:
    """Refuse what cannot be written before anything is searched."""
    if all_out is not None and not all_out.endswith(".parquet"):
        raise RequestError(
            f"cannot write {all_out}: a table of candidates is Parquet, so its name must end in .parquet"
        )
    outputs = {"--all-out": all_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs=inputs)
    if resume is not None and Path(resume).exists() and not Path(resume).is_dir():
        raise FileFormatError(f"cannot keep parts of a search in {resume}: it is not a folder; name another one")


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


def _tell(
    context: click.Context,
    answer: Answer,
    *,
    export: str | None,
    all_out: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Write the files asked for, then print the answer as tables or as one JSON document."""
    text = exported(answer.best.request, export)
    written = _write(answer, all_out=all_out, html=html)
    if as_json:
        print_json({**answer.as_dict(), "export": text})
        return
    show(answer)
    _say_how_to_see_more(context, answer)
    for what, path in written:
        console().print(f"{what}: {path}")
    show_export(text, "the first")


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
