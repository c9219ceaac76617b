"""``traincast capture``: trace a model and save its graph."""

from __future__ import annotations

from pathlib import Path

import click

from traincast.cli.output import console, print_json, traced
from traincast.errors import RequestError
from traincast.units import format_count, format_flops


@click.command(short_help="Trace a model and save its operator graph.")
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the graph (JSON).")
@click.option("--seq", metavar="N", help="Tokens per sample, for sequence models.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def capture(model: str, output: str, seq: str | None, as_json: bool) -> None:
    """Trace one training step of MODEL and save its operators, to be forecast without PyTorch."""
    from traincast.graph import Phase
    from traincast.graph.files import save_graph

    folder = Path(output).resolve().parent
    if not folder.is_dir():
        raise RequestError(f"cannot write {output}: the folder {folder} does not exist")
    graph = traced(model, seq=seq, use_cache=False)
    save_graph(graph, Path(output))
    facts = {
        "name": graph.name,
        "file": output,
        "operators": graph.num_operators,
        "distinct_operators": len(graph.operators),
        "blocks": sum(b.count for b in graph.blocks),
        "parameters": graph.num_parameters,
        "forward_flops": graph.flops(Phase.FORWARD),
        "backward_flops": graph.flops(Phase.BACKWARD),
        "tokens_per_sample": graph.tokens_per_sample,
    }
    if as_json:
        print_json(facts)
        return
    console().print(
        f"{graph.name}: {graph.num_operators} operators ({len(graph.operators)} stored), "
        f"{format_count(graph.num_parameters)} parameters, "
        f"forward {format_flops(graph.flops(Phase.FORWARD))} per sample"
    )
    console().print(f"graph: {output}")
