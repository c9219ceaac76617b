"""``traincast profile operators | collectives | opset``: measurements on the machine at hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincast import files
from traincast.cli.output import console, print_json, print_table
from traincast.cli.profile_output import (
    facts_of,
    only_rank_0_speaks,
    progress_on_terminal,
    saying_what_is_kept,
    show_rest,
)
from traincast.errors import RequestError
from traincast.units import format_bytes, format_seconds, parse_count

if TYPE_CHECKING:
    from traincast.graph import Operator
    from traincast.profiling.collective_cases import CollectiveRequest
    from traincast.profiling.operators import OperatorRequest


_MOST_LOCAL = 1024


@click.group(short_help="Measure operators and collectives on the machine at hand.")
def profile() -> None:
    """Measure operators and collectives on the machine at hand, into a table to learn from.

    A run that was stopped goes on where it stopped when it is started again with the same output; a
    table that exists is added to.
    """


@profile.command(name="operators")
@click.option(
    "--from",
    "sources",
    default="opset",
    show_default=True,
    metavar="MODEL,…",
    help="Models (`traincast models`), zoo for all of them, opset for the operator set, or an opset file.",
)
@click.option("--batch", default="1", show_default=True, metavar="N", help="Samples per step.")
@click.option("--seq", metavar="N", help="Tokens per sample, for sequence models.")
@click.option("--precision", default="fp32", show_default=True, metavar="NAME", help="fp32, bf16 or fp16.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu or cuda.")
@click.option("--threads", default=1, show_default=True, metavar="N", help="Threads of the processor to use.")
@click.option("--repeats", default=20, show_default=True, metavar="N", help="Timed runs of each operator alone.")
@click.option("--steps", default=5, show_default=True, metavar="N", help="Timed steps of each model.")
@click.option("--alone", is_flag=True, help="Only each distinct operator standing alone.")
@click.option("--in-context", is_flag=True, help="Only operators while their model runs.")
@click.option("--limit", type=int, metavar="N", help="At most so many operators alone, of all kinds in turn.")
@click.option("--seconds", type=float, metavar="N", help="Stop after so long; start again to go on.")
@click.option("--samples", default=40, show_default=True, metavar="N", help="Layers of each type in the operator set.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of the operator set.")
@click.option("--source", default="profile", show_default=True, metavar="NAME", help="What the table calls its source.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The table (.parquet).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def operators(
    sources: str,
    batch: str,
    seq: str | None,
    precision: str,
    device: str,
    threads: int,
    repeats: int,
    steps: int,
    alone: bool,
    in_context: bool,
    limit: int | None,
    seconds: float | None,
    samples: int,
    seed: int,
    source: str,
    output: str,
    as_json: bool,
) -> None:
    """Measure the operators of models, or of the operator set: alone, and while their model runs.

    With neither --alone nor --in-context, both are done.
    """
    from traincast.profiling.operators import OperatorRequest, request_sources
    from traincast.profiling.output import check_output

    models, files, opset = request_sources(sources)
    both = alone == in_context
    request = OperatorRequest(
        models=models,
        files=files,
        opset=opset,
        batch=parse_count(batch, what="--batch"),
        seq=None if seq is None else parse_count(seq, what="--seq"),
        precision=precision,
        device=device,
        threads=threads,
        repeats=repeats,
        steps=steps,
        alone=alone or both,
        in_context=in_context or both,
        limit=limit,
        seconds=seconds,
        source=source,
        samples=samples,
        seed=seed,
    )
    check_output(Path(output), table="operators")
    _measure_operators(request, Path(output), as_json=as_json)


def _measure_operators(request: OperatorRequest, output: Path, *, as_json: bool) -> None:
    from traincast.profiling.operators import profile_operators, summary_of

    with progress_on_terminal() as progress, saying_what_is_kept(output):
        result = profile_operators(request, output, progress=progress)
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


@profile.command(name="collectives")
@click.option("--ops", metavar="NAME,…", help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p.")
@click.option(
    "--sizes",
    default="1KiB..64MiB:4",
    show_default=True,
    metavar="SIZES",
    help="Sizes, or ranges that double (1KiB..64MiB) or grow by a factor (1KiB..64MiB:4).",
)
@click.option("--groups", metavar="N,…", help="Ranks per group; 2, 4, … up to all when left out.")
@click.option("--backend", default="gloo", show_default=True, metavar="NAME", help="gloo or nccl.")
@click.option("--repeats", default=20, show_default=True, metavar="N", help="Timed runs of each case.")
@click.option("--seconds", type=float, metavar="N", help="Stop after so long; start again to go on.")
@click.option("--threads", default=1, show_default=True, metavar="N", help="Threads per process.")
@click.option("--local", type=int, metavar="N", help="Start so many processes here, instead of using torchrun.")
@click.option("--source", default="profile", show_default=True, metavar="NAME", help="What the table calls its source.")
@click.option("--system", default="", metavar="NAME", help="What the table calls the system; its host name otherwise.")
@click.option("--interconnect", default="", metavar="TEXT", help="What connects the ranks, as the table shall say it.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The table (.parquet); rank 0 writes it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def collectives(
    ops: str | None,
    sizes: str,
    groups: str | None,
    backend: str,
    repeats: int,
    seconds: float | None,
    threads: int,
    local: int | None,
    source: str,
    system: str,
    interconnect: str,
    output: str,
    as_json: bool,
) -> None:
    """Measure collectives over sizes, group sizes and placements on nodes.

    Launch it on every rank, such as

    torchrun --nproc-per-node 4 -m traincast profile collectives -o mine.parquet

    or let it start processes on this machine with --local 4.
    """
    from traincast.profiling.collective_cases import COLLECTIVES, CollectiveRequest, parse_sizes
    from traincast.profiling.collectives import is_launched, torchrun_line
    from traincast.profiling.output import check_output

    with only_rank_0_speaks():
        request = CollectiveRequest(
            collectives=tuple(_names(ops)) if ops is not None else COLLECTIVES,
            sizes=parse_sizes(sizes),
            groups=() if groups is None else _group_sizes(groups),
            backend=backend,
            repeats=repeats,
            seconds=seconds,
            threads=threads,
            source=source,
            system=system,
            interconnect=interconnect,
        )
        check_output(Path(output), table="collectives")
        if local is None and is_launched():
            _measure_collectives(request, Path(output), as_json=as_json)
            return
    arguments = _without_local(click.get_current_context())
    if local is None:
        raise RequestError(f"collectives need several processes: {torchrun_line(arguments)} (or add --local 4)")
    if not max((2, *request.groups)) <= local <= _MOST_LOCAL:
        raise RequestError(
            f"--local {local}: expected 2 to {_MOST_LOCAL} processes, and as many as the largest group at least"
        )
    from traincast.profiling.collectives import check_backend
    from traincast.profiling.launch import run_locally

    check_backend(backend)
    with saying_what_is_kept(Path(output)):
        code = run_locally(arguments, ranks=local)
    sys.exit(code)


def _measure_collectives(request: CollectiveRequest, output: Path, *, as_json: bool) -> None:
    from traincast.profiling.collectives import profile_collectives, summary_of_collectives

    with progress_on_terminal() as progress, saying_what_is_kept(output):
        result = profile_collectives(request, output, progress=progress)
    if result is None:
        return
    summary = summary_of_collectives(result.rows)
    if as_json:
        print_json(facts_of(result) | {"summary": summary})
        return
    rows = [
        [
            str(line["collective"]),
            str(line["n_ranks"]),
            str(line["n_nodes"]),
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
        "sizes",
        "median dispersion",
        "suspect",
        "least time",
        "best bus bandwidth",
    )
    print_table("collectives measured", columns, rows, right=range(1, 8))
    show_rest(result)


@profile.command(name="opset")
@click.option("--samples", default=40, show_default=True, metavar="N", help="Layers of each type.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of the draw.")
@click.option("--batch", default="1", show_default=True, metavar="N", help="Samples per step.")
@click.option("--list", "listed", is_flag=True, help="Print every operator.")
@click.option("-o", "--output", metavar="FILE", help="Write the set (JSON), for `--from`.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def opset(samples: int, seed: int, batch: str, listed: bool, output: str | None, as_json: bool) -> None:
    """Draw the operator set: operators of thirteen CNN families and of transformers, around the published ones."""
    from traincast.profiling.opset import operator_set_by_type
    from traincast.profiling.opset_files import save_operator_set
    from traincast.profiling.rows import PHASES

    if output is not None and not output.endswith(".json"):
        raise RequestError(f"cannot write {output}: an operator set is JSON, so its name must end in .json")
    if output is not None:
        files.check_output(Path(output))
    size = parse_count(batch, what="--batch")
    by_type = operator_set_by_type(samples=samples, seed=seed, batch=size)
    if output is not None:
        save_operator_set(by_type, Path(output), settings={"samples": samples, "seed": seed, "batch": size})
    every = [op for chosen in by_type.values() for op in chosen]
    kinds = Counter(op.kind.value for op in every)
    if as_json:
        types = {name: len(chosen) for name, chosen in by_type.items()}
        print_json({"operators": len(every), "types": types, "kinds": dict(kinds), "file": output})
        return
    if listed:
        for name, chosen in by_type.items():
            for op in chosen:
                shapes = " ".join("×".join(map(str, t.shape)) or "1" for t in op.inputs)
                click.echo(f"{name:<13} {PHASES[op.phase]:<7} {op.name:<34} {shapes}")
        return
    rows = [
        [name, ", ".join(sorted({op.kind.value for op in chosen})), str(len(chosen)), *_phases(chosen)]
        for name, chosen in by_type.items()
    ]
    columns = ("type", "kinds", "operators", "forward", "backward", "update")
    print_table(f"{len(every)} distinct operators", columns, rows, right=range(2, 6))
    if output is not None:
        console().print(f"operator set: {output}")


def _phases(chosen: Sequence[Operator]) -> list[str]:
    from traincast.graph import Phase

    counts = Counter(op.phase for op in chosen)
    return [str(counts[phase]) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]


def _group_sizes(text: str) -> tuple[int, ...]:
    found = tuple(parse_count(size, what="--groups") for size in _names(text))
    if not found:
        raise RequestError(f"--groups {text!r}: expected ranks per group, such as 2,4")
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _without_local(context: click.Context) -> list[str]:
    """The words that would call this command again, but for ``--local``."""
    words = ["profile", "collectives"]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if not isinstance(parameter, click.Option) or parameter.name == "local" or value == parameter.default:
            continue
        if parameter.is_flag:
            words += [parameter.opts[-1]] if value else []
        elif value is not None:
            words += [parameter.opts[0], str(value)]
    return words
