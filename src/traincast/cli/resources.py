"""``traincast resources whatif``: what a job draws from its machines."""

from __future__ import annotations

import click

from traincast.cli import options
from traincast.cli.resources_whatif import whatif


@click.group(
    short_help="Ask what a job draws from its machines.",
    epilog=options.example("resources whatif resnet50 --cluster dgx-a100:1 --global-batch 512 --to-gpu h100-sxm5-80gb"),
)
def resources() -> None:
    """Ask what a job draws from devices, memory and network."""


resources.add_command(whatif)
