"""``traincast profile operators | collectives | opset | import | machine``: measure on the machine at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import click

from traincast import files
from traincast.ask import Count, Option
from traincast.cli import options
from traincast.cli.derive import asks, words_of
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table
from traincast.cli.profiling.events import events
from traincast.cli.profiling.imports import import_logs
from traincast.cli.profiling.machine import machine
from traincast.cli.profiling.output import (
    facts_of,
    only_rank_0_speaks,
    phase_counts,
    progress_on_terminal,
    saying_what_is_kept,
    show_families,
    show_rest,
)
from traincast.errors import RequestError
from traincast.profiling.collectives.cases import CollectiveRequest
from traincast.profiling.operators.ask import OperatorRequest, OperatorSet, OperatorTiming
from traincast.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsShown(Shown):
    """Whose operators are measured, how, and what ``profile operators`` writes and shows."""

    sources: Annotated[
        str,
        Option(
            "Models to take operators from (see `traincast models`). `zoo` takes all models, `opset` the operator set; "
            "a .json file is a saved operator set.",
            "MODEL,…",
            flag="--from",
        ),
    ] = "opset"
    alone: Annotated[bool, Option("Only time each distinct operator alone.")] = False
    in_context: Annotated[bool, Option("Only time operators while their model runs.")] = False
    output: Annotated[str, Option("Write to PATH: the table (.parquet).", "PATH", short="-o")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesShown(Shown):
    """Where ``profile collectives`` runs, and what it writes and shows."""

    local: Annotated[
        Count | None, Option("Start N processes on this machine. If omitted, torchrun must start them.", "N")
    ] = None
    output: Annotated[str, Option("Write to PATH: the table (.parquet); rank 0 writes it.", "PATH", short="-o")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsetShown(Shown):
    """What ``profile opset`` writes and shows."""

    listed: Annotated[bool, Option("Print every operator.", flag="--list")] = False
    families: Annotated[bool, Option("Print how many operators of each type the CNN families have.")] = False
    output: Annotated[
        str | None,
        Option(
            "Write to PATH: the operator set (.json); `traincast profile operators --from` reads it.",
            "PATH",
            short="-o",
        ),
    ] = None


@click.group(
    short_help="Measure operators and collectives on the machine at hand.",
    epilog=options.example("profile operators --from gpt2 -o mine.parquet"),
)
def profile() -> None:
    """Measure operators and collectives on the machine at hand, and write a table that `traincast fit` reads.

    A table that exists is extended. A run that was interrupted resumes when the same command is run again.
    """


profile.add_command(import_logs)
profile.add_command(machine)


@profile.command(
    name="operators",
    epilog=options.example("profile operators --from gpt2,resnet50 --time-limit 10min -o mine.parquet"),
)
@asks(OperatorTiming, OperatorsShown)
def operators(timing: OperatorTiming, shown: OperatorsShown) -> None:
    """Measure the operators of models, or of the operator set.

    Each operator is timed alone, and while its model runs. --alone and --in-context choose one of the two.
    """
    from traincast.profiling.operators.measure import request_sources, summary_of
    from traincast.profiling.profile import profile as measure

    models, files, opset = request_sources(shown.sources)
    both = shown.alone == shown.in_context
    request = OperatorRequest(
        **{one.name: getattr(timing, one.name) for one in fields(timing)},
        models=models,
        files=files,
        opset=opset,
        alone=shown.alone or both,
        in_context=shown.in_context or both,
    )
    with progress_on_terminal() as progress, saying_what_is_kept(Path(shown.output)):
        result = measure(request, output=shown.output, progress=progress)
    assert result is not None, "operators are measured in this process"
    summary = summary_of(result.rows)
    if shown.as_json:
        print_json(facts_of(result) | {"summary": summary})
        return
    rows = [
        [
            str(line["context"]),
            str(line["op"]),
            str(line["n"]),
            f"{line['median_dispersion']:.1%}",
            str(line["suspect"]),
            format_seconds(line["total_s"]),
        ]
        for line in summary
    ]
    columns = ("context", "kind", "operators", "median dispersion", "suspect", "total time")
    print_table("operators measured", columns, rows, right=range(2, 6))
    show_rest(result)


@profile.command(
    name="collectives", epilog=options.example("profile collectives --local 4 --sizes 1KiB..64MiB:4 -o mine.parquet")
)
@asks(CollectiveRequest, CollectivesShown, defaults={"collectives": None, "sizes": "1KiB..64MiB:4", "groups": None})
def collectives(request: CollectiveRequest, shown: CollectivesShown) -> None:
    """Measure collectives over sizes, group sizes and placements on nodes.

    Start it on every rank, for example with

    torchrun --nproc-per-node 4 -m traincast profile collectives -o mine.parquet

    or let it start processes on this machine with --local 4.
    """
    from traincast.profiling.collectives.measure import is_launched, summary_of_collectives, torchrun_line
    from traincast.profiling.output import check_output
    from traincast.profiling.profile import check_ranks
    from traincast.profiling.profile import profile as measure

    with only_rank_0_speaks():
        check_output(Path(shown.output), table="collectives")
    if shown.local is not None:
        check_ranks(shown.local, request, what="--local")
    elif not is_launched():
        words = [
            "profile",
            "collectives",
            *words_of(request),
            "-o",
            shown.output,
            *(["--json"] if shown.as_json else []),
        ]
        raise RequestError(f"collectives need several processes: {torchrun_line(words)} (or add --local 4)")
    with progress_on_terminal() as progress, saying_what_is_kept(Path(shown.output)):
        result = measure(request, output=shown.output, ranks=shown.local, progress=progress)
    if result is None:
        return
    summary = summary_of_collectives(result.rows)
    if shown.as_json:
        print_json(facts_of(result) | {"summary": summary})
        return
    patterns = any(_pattern(line) != "isolated" for line in summary)
    rows = [
        [
            str(line["collective"]),
            str(line["n_ranks"]),
            str(line["n_nodes"]),
            *([_pattern(line)] if patterns else []),
            str(line["n"]),
            f"{line['median_dispersion']:.1%}",
            str(line["suspect"]),
            format_seconds(line["least_s"]),
            f"{format_bytes(line['best_bytes_per_s'])}/s",
        ]
        for line in summary
    ]
    columns = (
        "collective",
        "ranks",
        "nodes",
        *(["pattern"] if patterns else []),
        "sizes",
        "median dispersion",
        "suspect",
        "least time",
        "best bus bandwidth",
    )
    print_table("collectives measured", columns, rows, right=range(1, len(columns)))
    show_rest(result)


def _pattern(line: Mapping[str, Any]) -> str:
    """What ran at the same time, for a table."""
    groups = f"{line['concurrent_groups']} groups" if line["concurrent_groups"] > 1 else ""
    return ", ".join(filter(None, ("computing" if line["beside_compute"] else "", groups))) or "isolated"


@profile.command(name="opset", epilog=options.example("profile opset --layers-per-type 10 -o opset.json"))
@asks(OperatorSet, OpsetShown)
def opset(drawn: OperatorSet, shown: OpsetShown) -> None:
    """Draw the operator set: operators of 13 CNN families, transformers and recurrent networks.

    Their sizes are those of published layers and others close to them.
    """
    from traincast.estimate.events.keys import PHASES
    from traincast.profiling.operators.opset import operator_set_by_type, operators_by_family, save_operator_set

    output = shown.output
    if output is not None and not output.endswith(".json"):
        raise RequestError(f"cannot write {output}: an operator set is JSON, so its name must end in .json")
    if output is not None:
        files.check_output(Path(output))
    by_type = operator_set_by_type(samples=drawn.layers_per_type, seed=drawn.seed, batch=drawn.batch, size=drawn.size)
    if output is not None:
        save_operator_set(
            by_type,
            Path(output),
            settings={"samples": drawn.layers_per_type, "seed": drawn.seed, "batch": drawn.batch},
        )
    every = [op for chosen in by_type.values() for op in chosen]
    kinds = Counter(op.kind.value for op in every)
    if shown.as_json:
        types = {name: len(chosen) for name, chosen in by_type.items()}
        extra = {"families": operators_by_family()} if shown.families else {}
        print_json({"operators": len(every), "types": types, "kinds": dict(kinds), "file": output, **extra})
        return
    if shown.families:
        show_families()
        return
    if shown.listed:
        for name, chosen in by_type.items():
            for op in chosen:
                shapes = " ".join("×".join(map(str, t.shape)) or "1" for t in op.inputs)
                click.echo(f"{name:<13} {PHASES[op.phase]:<7} {op.name:<34} {shapes}")
        return
    rows = [
        [name, ", ".join(sorted({op.kind.value for op in chosen})), str(len(chosen)), *phase_counts(chosen)]
        for name, chosen in by_type.items()
    ]
    columns = ("type", "kinds", "operators", "forward", "backward", "update")
    print_table(f"{len(every)} distinct operators", columns, rows, right=range(2, 6))
    if output is not None:
        console().print(f"operator set: {output}")


profile.add_command(events)
