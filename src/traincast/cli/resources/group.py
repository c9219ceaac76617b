"""``traincast resources compare | simulate | whatif``: what a job draws from its machines."""

from __future__ import annotations

import click

from traincast.cli import options
from traincast.cli.resources.compare import compare
from traincast.cli.resources.simulate import simulate
from traincast.cli.resources.whatif import whatif


@click.group(
    short_help="Ask what a job draws from its machines.",
    epilog=options.example("resources whatif resnet50 --cluster dgx-a100:1 --global-batch 512 --to-gpu h100-sxm5-80gb"),
)
def resources() -> None:
    """Ask what a job draws from devices, memory and network, and compare real runs with forecasts."""


resources.add_command(compare)
resources.add_command(simulate)
resources.add_command(whatif)
