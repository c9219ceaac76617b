"""``traincast profile operators | collectives | opset | import | machine``: measure on the machine at hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincast import files
from traincast.cli import options
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
from traincast.units import format_bytes, format_seconds, parse_count

if TYPE_CHECKING:
    from traincast.profiling.collectives.cases import CollectiveRequest


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
@click.option(
    "--from",
    "sources",
    default="opset",
    show_default=True,
    metavar="MODEL,…",
    help="Models to take operators from (see `traincast models`). `zoo` takes all models, `opset` the operator set; "
    "a .json file is a saved operator set.",
)
@options.batch()
@options.seq()
@options.precision("fp32, bf16 or fp16.", default="fp32")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Where to run: cpu or cuda.")
@options.threads()
@options.repeats()
@click.option(
    "--timed-steps", default=5, show_default=True, type=options.COUNT, metavar="N", help="Timed steps of each model."
)
@click.option("--alone", is_flag=True, help="Only time each distinct operator alone.")
@click.option("--in-context", is_flag=True, help="Only time operators while their model runs.")
@click.option(
    "--limit",
    type=options.COUNT,
    metavar="N",
    help="Time at most N operators alone; the kinds of operators take turns.",
)
@options.time_limit()
@options.layers_per_type()
@options.opset_size()
@options.seed("The operator set depends on it.")
@options.source()
@options.output("the table (.parquet).")
@options.json()
def operators(
    sources: str,
    batch: int,
    seq: int | None,
    precision: str,
    device: str,
    threads: int,
    repeats: int,
    timed_steps: int,
    alone: bool,
    in_context: bool,
    limit: int | None,
    time_limit: float | None,
    layers_per_type: int,
    size: str,
    seed: int,
    source: str,
    output: str,
    as_json: bool,
) -> None:
    """Measure the operators of models, or of the operator set.

    Each operator is timed alone, and while its model runs. --alone and --in-context choose one of the two.
    """
    from traincast.profiling.operators.measure import OperatorRequest, request_sources, summary_of
    from traincast.profiling.profile import profile as measure

    models, files, opset = request_sources(sources)
    both = alone == in_context
    request = OperatorRequest(
        models=models,
        files=files,
        opset=opset,
        batch=batch,
        seq=seq,
        precision=precision,
        device=device,
        threads=threads,
        repeats=repeats,
        timed_steps=timed_steps,
        alone=alone or both,
        in_context=in_context or both,
        limit=limit,
        time_limit_s=time_limit,
        source=source,
        layers_per_type=layers_per_type,
        size=size,
        seed=seed,
    )
    with progress_on_terminal() as progress, saying_what_is_kept(Path(output)):
        result = measure(request, output=output, progress=progress)
    assert result is not None, "operators are measured in this process"
    summary = summary_of(result.rows)
    if as_json:
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
@click.option(
    "--ops",
    metavar="NAME,…",
    help="Collectives to measure: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p. Default: all.",
)
@click.option(
    "--sizes",
    default="1KiB..64MiB:4",
    show_default=True,
    metavar="SIZE,…",
    help="Message sizes (64KiB,1MB), or ranges that double (1KiB..64MiB) or grow by a factor (1KiB..64MiB:4).",
)
@click.option("--groups", metavar="N,…", help="Ranks per group. Default: 2, 4, … up to all ranks.")
@click.option(
    "--backend", default="gloo", show_default=True, metavar="NAME", help="Communication library: gloo or nccl."
)
@options.repeats()
@options.time_limit()
@options.threads()
@click.option(
    "--local",
    type=options.COUNT,
    metavar="N",
    help="Start N processes on this machine. If omitted, torchrun must start them.",
)
@click.option("--beside-compute", is_flag=True, help="Also measure each collective while all of its ranks compute.")
@click.option(
    "--concurrent-groups",
    default=1,
    show_default=True,
    type=options.COUNT,
    metavar="N",
    help="Also measure each collective while N groups of the same shape run it at once.",
)
@click.option(
    "--node-sets",
    default=1,
    show_default=True,
    type=options.COUNT,
    metavar="N",
    help="Measure each group on up to N different sets of nodes.",
)
@options.source()
@click.option(
    "--system", default="", metavar="NAME", help="Value of the table's system column. Default: the name of the host."
)
@click.option(
    "--interconnect", default="", metavar="TEXT", help="Value of the table's interconnect column, such as NVLink."
)
@options.output("the table (.parquet); rank 0 writes it.")
@options.json()
def collectives(
    ops: str | None,
    sizes: str,
    groups: str | None,
    backend: str,
    repeats: int,
    time_limit: float | None,
    threads: int,
    local: int | None,
    beside_compute: bool,
    concurrent_groups: int,
    node_sets: int,
    source: str,
    system: str,
    interconnect: str,
    output: str,
    as_json: bool,
) -> None:
    """Measure collectives over sizes, group sizes and placements on nodes.

    Start it on every rank, for example with

    torchrun --nproc-per-node 4 -m traincast profile collectives -o mine.parquet

    or let it start processes on this machine with --local 4.
    """
    from traincast.profiling.collectives.cases import COLLECTIVES, CollectiveRequest, parse_sizes
    from traincast.profiling.collectives.measure import is_launched, torchrun_line
    from traincast.profiling.launch import run_locally, words_of
    from traincast.profiling.output import check_output
    from traincast.profiling.profile import check_ranks

    with only_rank_0_speaks():
        request = CollectiveRequest(
            collectives=tuple(_names(ops)) if ops is not None else COLLECTIVES,
            sizes=parse_sizes(sizes),
            groups=() if groups is None else _group_sizes(groups),
            backend=backend,
            repeats=repeats,
            time_limit_s=time_limit,
            threads=threads,
            source=source,
            system=system,
            interconnect=interconnect,
            beside_compute=beside_compute,
            concurrent_groups=concurrent_groups,
            node_sets=node_sets,
        )
        check_output(Path(output), table="collectives")
        if local is None and is_launched():
            _measure_collectives(request, output, as_json=as_json)
            return
    words = [*words_of(request, Path(output)), *(["--json"] if as_json else [])]
    if local is None:
        raise RequestError(f"collectives need several processes: {torchrun_line(words)} (or add --local 4)")
    check_ranks(local, request, what="--local")
    with saying_what_is_kept(Path(output)):
        code = run_locally(words, ranks=local)  # rank 0 prints the result
    sys.exit(code)


def _measure_collectives(request: CollectiveRequest, output: str, *, as_json: bool) -> None:
    from traincast.profiling.collectives.measure import summary_of_collectives
    from traincast.profiling.profile import profile as measure

    with progress_on_terminal() as progress, saying_what_is_kept(Path(output)):
        result = measure(request, output=output, progress=progress)
    if result is None:
        return
    summary = summary_of_collectives(result.rows)
    if as_json:
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
@options.layers_per_type()
@options.opset_size()
@options.seed("The operator set depends on it.")
@options.batch()
@click.option("--list", "listed", is_flag=True, help="Print every operator.")
@click.option("--families", is_flag=True, help="Print how many operators of each type the CNN families have.")
@options.output("the operator set (.json); `traincast profile operators --from` reads it.", required=False)
@options.json()
def opset(
    layers_per_type: int,
    size: str,
    seed: int,
    batch: int,
    listed: bool,
    families: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Draw the operator set: operators of 13 CNN families, transformers and recurrent networks.

    Their sizes are those of published layers and others close to them.
    """
    from traincast.estimate.events.keys import PHASES
    from traincast.profiling.operators.opset import operator_set_by_type, operators_by_family, save_operator_set

    if output is not None and not output.endswith(".json"):
        raise RequestError(f"cannot write {output}: an operator set is JSON, so its name must end in .json")
    if output is not None:
        files.check_output(Path(output))
    by_type = operator_set_by_type(samples=layers_per_type, seed=seed, batch=batch, size=size)
    if output is not None:
        save_operator_set(by_type, Path(output), settings={"samples": layers_per_type, "seed": seed, "batch": batch})
    every = [op for chosen in by_type.values() for op in chosen]
    kinds = Counter(op.kind.value for op in every)
    if as_json:
        types = {name: len(chosen) for name, chosen in by_type.items()}
        extra = {"families": operators_by_family()} if families else {}
        print_json({"operators": len(every), "types": types, "kinds": dict(kinds), "file": output, **extra})
        return
    if families:
        show_families()
        return
    if listed:
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


def _group_sizes(text: str) -> tuple[int, ...]:
    found = tuple(parse_count(size, what="--groups") for size in _names(text))
    if not found:
        raise RequestError(f"--groups {text!r}: expected ranks per group, such as 2,4")
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
