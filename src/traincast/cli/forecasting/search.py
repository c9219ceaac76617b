"""``traincast search``: the best strategies for a model, on one cluster or on the best of several."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import Ask, Option, Training, Workers, declared
from traincast.cli import options
from traincast.cli.derive import asks, words_of
from traincast.cli.forecasting.exporting import exported, runtime_for, show_export
from traincast.cli.forecasting.search_tables import show
from traincast.cli.options import ADDRESS, ENGINE, ForecastShown
from traincast.cli.output import console, files_of, print_json, progress_bar, traced
from traincast.errors import EmptyAxisError, FileFormatError, NoneAcceptedError, RequestError, StrategyError
from traincast.files import check_outputs
from traincast.searching.ask import SearchAsk

if TYPE_CHECKING:
    from traincast.searching.answer import Answer
    from traincast.strategy import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchShown(ForecastShown):
    """Where ``search`` runs, and what it shows and writes."""

    engine: Annotated[str, ENGINE] = "local"
    workers: Annotated[
        Workers | None, options.workers_option("If omitted, as many as this machine has processors.")
    ] = None
    address: Annotated[str | None, ADDRESS] = None
    export: Annotated[
        str | None,
        options.exports("Only strategies that the framework can run are considered, timed with its runtime."),
    ] = None
    all_out: Annotated[str | None, Option("Write every strategy that was evaluated.", "FILE.parquet")] = None


@click.command(
    short_help="Find the best strategies, and the chance that each is the best.",
    epilog=options.example("search llama3-8b --cluster dgx-h100:4 --global-batch 256 --html search.html"),
)
@asks(SearchAsk, SearchShown, defaults={"objective": None, "confidence": "80%"})
def search(ask: SearchAsk, shown: SearchShown) -> None:
    """Find the best strategies for MODEL on a cluster, among all legal ones that fit in memory.

    MODEL has the forms that `traincast predict` takes. With --nodes or --devices, the search also chooses the cluster.
    """
    from traincast.cluster import load_cluster
    from traincast.engines import load_engine
    from traincast.searching.search import search as find_best

    _check_outputs(ask, shown)
    load_cluster(str(ask.cluster))  # an unknown cluster is refused before the model is traced
    ask = replace(ask, runtime=runtime_for(shown.export, ask.runtime))
    if ask.deadline_s is not None and click.get_current_context().params["objective"] is None:
        ask = replace(ask, objective="cost")
    limits = (*_expressible(shown.export, str(ask.model)), ask.constraint)
    limited = traced(replace(ask, constraint=",".join(filter(None, limits))))
    refusals: list[str] = []
    with _limited_to(shown.export, refusals), progress_bar("parts of the space") as progress:
        answer = find_best(
            replace(
                limited,
                engine=load_engine(shown.engine, workers=shown.workers, address=shown.address),
                engine_name=shown.engine,
                progress=progress,
                accepts=None if shown.export is None else _accepts(shown.export, refusals),
            )
        )
    _tell(ask, shown, answer)


def _check_outputs(ask: SearchAsk, shown: SearchShown) -> None:
    """Refuse outputs that cannot be written before anything is searched."""
    all_out, resume = shown.all_out, None if ask.resume is None else Path(ask.resume)
    if all_out is not None and not all_out.endswith(".parquet"):
        raise RequestError(
            f"cannot write {all_out}: a table of candidates is Parquet, so its name must end in .parquet"
        )
    outputs = {"--all-out": all_out, "--html": shown.html}
    check_outputs({option: Path(path) for option, path in outputs.items() if path}, inputs=files_of(ask))
    if resume is not None and resume.exists() and not resume.is_dir():
        raise FileFormatError(f"cannot save finished parts in {resume}: it is not a folder; name a folder")


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


def _tell(ask: SearchAsk, shown: SearchShown, answer: Answer) -> None:
    """Write the requested files, then print the answer as tables or as one JSON document."""
    text = exported(answer.best.request, shown.export)
    written = _write(answer, all_out=shown.all_out, html=shown.html)
    if shown.as_json:
        print_json({**answer.to_dict(), "export": text})
        return
    show(answer, explain=shown.explain)
    _say_how_to_see_more(ask, answer)
    for what, path in written:
        console().print(f"{what}: {path}")
    show_export(text, "the first strategy")


def _say_how_to_see_more(ask: SearchAsk, answer: Answer) -> None:
    """Print the command that forecasts the first strategy in detail."""
    place, cluster = answer.best.request.cluster, ask.cluster
    if ask.nodes or ask.devices:
        if str(cluster).partition(":")[0].endswith(".toml"):
            return
        cluster = f"{place.name}:{place.num_nodes}"
    asked = {one.name: getattr(ask, one.name) for one in declared(Training) if one.name not in ("bundle", "events")}
    best = Ask(**asked | {"cluster": cluster, "strategy": answer.best.strategy.complete_text})
    click.echo(f"To see the first strategy in detail, run: {shlex.join(['traincast', 'predict', *words_of(best)])}")
