"""``traincast capture``: trace a model and save its graph."""

from __future__ import annotations

from pathlib import Path

import click

from traincast.cli import options
from traincast.cli.output import console, input_files, print_json, traced_graph
from traincast.files import check_output
from traincast.units import format_flops, format_parameters


@click.command(
    short_help="Trace a model and save its operator graph.", epilog=options.example("capture gpt2 -o gpt2.json")
)
@click.argument("model")
@options.output("the operator graph (.json).")
@options.seq()
@options.json()
def capture(model: str, output: str, seq: int | None, as_json: bool) -> None:
    """Trace one training step of MODEL and save its operator graph.

    `traincast predict` and `traincast search` take the saved file as MODEL, without PyTorch.
    """
    from traincast.graph import Phase
    from traincast.graph.files import save_graph

    check_output(Path(output), inputs=input_files({"MODEL": model}))
    graph = traced_graph(model, seq=seq, use_cache=False)
    save_graph(graph, Path(output))
    facts = {
        "name": graph.name,
        "file": output,
        "operators": graph.num_operators,
        "distinct_operators": len(graph.operators),
        "blocks": sum(b.count for b in graph.blocks),
        "parameters": graph.num_parameters,
        "trainable_parameters": graph.num_trainable_parameters,
        "forward_flops": graph.flops(Phase.FORWARD),
        "backward_flops": graph.flops(Phase.BACKWARD),
        "tokens_per_sample": graph.tokens_per_sample,
    }
    if as_json:
        print_json(facts)
        return
    console().print(
        f"{graph.name}: {graph.num_operators} operators ({len(graph.operators)} stored), "
        f"{format_parameters(graph.num_parameters, graph.num_trainable_parameters)}, "
        f"forward {format_flops(graph.flops(Phase.FORWARD))} per sample"
    )
    console().print(f"graph: {output}")
