"""``traincast capture``: trace a model and save its graph."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import click

from traincast.ask import Ask, Count, Option, option_of
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, input_files, print_json, traced_graph
from traincast.files import check_output
from traincast.units import format_flops, format_parameters


@dataclass(frozen=True, slots=True)
class CaptureAsk:
    """What ``capture`` is asked."""

    model: Annotated[str, option_of(Ask, "model")]
    _: KW_ONLY
    output: Annotated[str, Option("Write to PATH: the operator graph (.json).", "PATH", short="-o")]
    seq: Annotated[Count | None, option_of(Ask, "seq")] = None


@click.command(
    short_help="Trace a model and save its operator graph.", epilog=options.example("capture gpt2 -o gpt2.json")
)
@asks(CaptureAsk, Shown)
def capture(ask: CaptureAsk, shown: Shown) -> None:
    """Trace one training step of MODEL and save its operator graph.

    `traincast predict` and `traincast search` take the saved file as MODEL, without PyTorch.
    """
    from traincast.graph import Phase
    from traincast.graph.files import save_graph

    check_output(Path(ask.output), inputs=input_files({"MODEL": ask.model}))
    graph = traced_graph(ask.model, seq=ask.seq, use_cache=False)
    save_graph(graph, Path(ask.output))
    facts = {
        "name": graph.name,
        "file": ask.output,
        "operators": graph.num_operators,
        "distinct_operators": len(graph.operators),
        "blocks": sum(b.count for b in graph.blocks),
        "parameters": graph.num_parameters,
        "trainable_parameters": graph.num_trainable_parameters,
        "forward_flops": graph.flops(Phase.FORWARD),
        "backward_flops": graph.flops(Phase.BACKWARD),
        "tokens_per_sample": graph.tokens_per_sample,
    }
    if shown.as_json:
        print_json(facts)
        return
    console().print(
        f"{graph.name}: {graph.num_operators} operators ({len(graph.operators)} stored), "
        f"{format_parameters(graph.num_parameters, graph.num_trainable_parameters)}, "
        f"forward {format_flops(graph.flops(Phase.FORWARD))} per sample"
    )
    console().print(f"graph: {ask.output}")
