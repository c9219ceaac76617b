"""``traincast search``: the best strategies for a model, on one cluster or on the best of several."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast.cli import options
from traincast.cli.cost_model import events_cost_model
from traincast.cli.exporting import exported, runtime_for, show_export
from traincast.cli.finetuning import fine_tuning, fine_tuning_words
from traincast.cli.output import console, input_files, print_json, progress_bar, traced
from traincast.cli.search_tables import show
from traincast.errors import (
    EmptyAxisError,
    FileFormatError,
    NoneAcceptedError,
    RequestError,
    StrategyError,
    UnknownNameError,
)
from traincast.files import check_outputs

if TYPE_CHECKING:
    from traincast.searching.answer import Answer
    from traincast.searching.problem import Objective
    from traincast.strategy import Request


@click.command(
    short_help="Find the best strategies, and the chance that each is the best.",
    epilog=options.example("search llama3-8b --cluster dgx-h100:4 --global-batch 256 --html search.html"),
)
@click.argument("model")
@options.cluster(options.CATALOG_CLUSTER)
@options.global_batch()
@options.seq()
@options.precision(options.PRECISIONS)
@options.runtime()
@fine_tuning()
@click.option(
    "--objective",
    metavar="NAME",
    help="Minimize time, cost, energy or memory. Default: cost with --deadline, time otherwise.",
)
@click.option("--top", default=10, type=options.COUNT, show_default=True, metavar="N", help="Show N strategies.")
@click.option(
    "--constraint",
    multiple=True,
    metavar="LIMIT,…",
    help="Consider only strategies within these limits, such as memory<=70GB,tp<=8,zero=1|3.",
)
@click.option(
    "--nodes",
    metavar="N,…|N..N",
    help="Also choose the number of nodes: from a list (2,4,6) or from the doublings of a range (8..128).",
)
@click.option(
    "--devices", metavar="NAME,…", help="Also choose the device: from these devices or node types, such as h100,h200."
)
@options.job_length()
@click.option(
    "--deadline",
    type=options.TIME,
    metavar="TIME",
    help="Longest time that the job may take, such as 14d. "
    "By default, the cheapest strategy that meets it comes first.",
)
@click.option(
    "--budget",
    type=options.COUNT,
    metavar="DOLLARS",
    help="Most that the job may cost, in US dollars, such as 2e6. "
    "By default, the fastest strategy within it comes first.",
)
@click.option(
    "--confidence",
    default="80%",
    show_default=True,
    metavar="CHANCE",
    help="Required chance that the job meets its deadline and its budget, such as 0.9 or 90%.",
)
@click.option(
    "--searcher",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Search method: auto, exhaustive, branch-and-bound or annealing.",
)
@options.seed("Annealing and the draws that estimate chances use it.")
@options.engine()
@options.workers("If omitted, as many as this machine has processors.")
@click.option(
    "--resume",
    metavar="FOLDER",
    help="Save finished parts in FOLDER; a later run with the same folder resumes from them.",
)
@options.export("Only strategies that the framework can run are considered, timed with its runtime.")
@click.option("--all-out", metavar="FILE.parquet", help="Write every strategy that was evaluated.")
@options.html()
@options.bundle()
@options.events()
@options.no_cache()
@options.explain()
@options.json()
@click.pass_context
def search(
    context: click.Context,
    model: str,
    cluster: str,
    global_batch: int,
    seq: int | None,
    precision: str | None,
    runtime: str | None,
    lora: str | None,
    freeze: tuple[str, ...],
    quantize: str | None,
    optimizer: str | None,
    objective: str | None,
    top: int,
    constraint: tuple[str, ...],
    nodes: str | None,
    devices: str | None,
    tokens: int | None,
    samples: int | None,
    steps: int | None,
    deadline: float | None,
    budget: int | None,
    confidence: str,
    searcher: str,
    seed: int,
    engine: str,
    workers: int | None,
    address: str | None,
    resume: str | None,
    export: str | None,
    all_out: str | None,
    html: str | None,
    bundle: tuple[str, ...],
    events: str | None,
    no_cache: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Find the best strategies for MODEL on a cluster, among all legal ones that fit in memory.

    MODEL has the forms that `traincast predict` takes. With --nodes or --devices, the search also chooses the cluster.
    """
    from traincast.cluster import load_cluster
    from traincast.engines import load_engine
    from traincast.searching.places import parse_nodes
    from traincast.searching.search import search as find_best

    inputs = input_files({"MODEL": model, "--cluster": cluster, "--runtime": runtime})
    _check_outputs(all_out=all_out, html=html, resume=resume, inputs=inputs)
    load_cluster(cluster)  # an unknown cluster is refused before the model is traced
    graph = traced(model, seq=seq, use_cache=not no_cache)
    refusals: list[str] = []
    with _limited_to(export, refusals), progress_bar("parts of the space") as progress:
        answer = find_best(
            graph,
            cluster=cluster,
            global_batch=global_batch,
            precision=precision,
            runtime=runtime_for(export, runtime),
            lora=lora,
            freeze=freeze,
            quantize=quantize,
            optimizer=optimizer or True,
            objective=_objective(objective, deadline),
            top=top,
            constraint=",".join([*_expressible(export, model), *constraint]),
            nodes=() if nodes is None else parse_nodes(nodes),
            devices=() if devices is None else _names(devices),
            tokens=tokens,
            samples=samples,
            steps=steps,
            deadline_s=deadline,
            budget=None if budget is None else float(budget),
            confidence=_chance(confidence),
            searcher=searcher,
            engine=load_engine(engine, workers=workers, address=address),
            engine_name=engine,
            resume=None if resume is None else Path(resume),
            progress=progress,
            cost_model=events_cost_model(events, bundle),
            accepts=None if export is None else _accepts(export, refusals),
            seed=seed,
        )
    _tell(context, answer, export=export, all_out=all_out, html=html, explain=explain, as_json=as_json)


def _check_outputs(*, all_out: str | None, html: str | None, resume: str | None, inputs: Mapping[str, Path]) -> None:
    """Refuse outputs that cannot be written before anything is searched."""
    if all_out is not None and not all_out.endswith(".parquet"):
        raise RequestError(
            f"cannot write {all_out}: a table of candidates is Parquet, so its name must end in .parquet"
        )
    outputs = {"--all-out": all_out, "--html": html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs=inputs)
    if resume is not None and Path(resume).exists() and not Path(resume).is_dir():
        raise FileFormatError(f"cannot save finished parts in {resume}: it is not a folder; name a folder")


def _objective(said: str | None, deadline: float | None) -> Objective:
    """Return the objective; if none is given, cost with a deadline and time without. Refuse unknown names."""
    from traincast.searching.problem import OBJECTIVES

    if said is None:
        return "time" if deadline is None else "cost"
    for objective in OBJECTIVES:
        if said == objective:
            return objective
    raise UnknownNameError("objective", said, OBJECTIVES)


def _chance(text: str) -> float:
    """Read ``0.9`` or ``90%``, strictly between 0 and 1."""
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
    """Name the framework in an error if its limits leave no strategy; ``refusals`` are its own reasons."""
    try:
        yield
    except EmptyAxisError as error:
        if framework is None:
            raise
        raise StrategyError(f"{error}, within the limits of {framework}") from error
    except NoneAcceptedError as error:
        if not refusals:
            raise
        raise StrategyError(f"{framework} can run none of the strategies found: {refusals[0]}") from error


def _accepts(framework: str, refusals: list[str]) -> Callable[[Request], bool]:
    """Return a function that tests whether a framework can run a strategy; the first refusal goes to ``refusals``."""
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
    """Return the framework's limits on single axes as a constraint; :func:`_accepts` tests combinations of axes."""
    from traincast.export import axes_of

    return [] if framework is None else [axes_of(framework, model)]


def _write(answer: Answer, *, all_out: str | None, html: str | None) -> list[tuple[str, str]]:
    """Write the requested files; return a description and the path of each."""
    written = []
    if all_out is not None:
        from traincast.searching.answer import write_table

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
    explain: bool,
    as_json: bool,
) -> None:
    """Write the requested files, then print the answer as tables or as one JSON document."""
    text = exported(answer.best.request, export)
    written = _write(answer, all_out=all_out, html=html)
    if as_json:
        print_json({**answer.to_dict(), "export": text})
        return
    show(answer, explain=explain)
    _say_how_to_see_more(context, answer)
    for what, path in written:
        console().print(f"{what}: {path}")
    show_export(text, "the first strategy")


def _say_how_to_see_more(context: click.Context, answer: Answer) -> None:
    """Print the command that forecasts the first strategy in detail."""
    given = context.params
    place = answer.best.request.cluster
    cluster = given["cluster"]
    if given["nodes"] or given["devices"]:
        if cluster.partition(":")[0].endswith(".toml"):
            return
        cluster = f"{place.name}:{place.num_nodes}"
    words = [
        "traincast",
        "predict",
        given["model"],
        "--cluster",
        cluster,
        "--global-batch",
        _short(given["global_batch"]),
    ]
    asked = {**given, "runtime": runtime_for(given["export"], given["runtime"])}
    for name in ("seq", "precision", "runtime", "tokens", "samples", "steps"):
        words += [f"--{name}", _short(asked[name])] if asked[name] else []
    words += fine_tuning_words(given)
    words += ["--strategy", answer.best.strategy.complete_text]
    click.echo(f"To see the first strategy in detail, run: {shlex.join(words)}")


def _short(value: int | str) -> str:
    """Return a count as a person would write it: ``1e10``, not ``10000000000``."""
    short = re.sub(r"e\+0*", "e", f"{value:g}") if isinstance(value, int) else value
    return short if isinstance(value, str) or float(short) == value else str(value)
