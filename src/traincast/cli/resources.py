"""``traincast resources simulate | whatif``: what a job draws from its machines."""

from __future__ import annotations

import importlib
from typing import Final

import click

from traincast.cli import options

COMMANDS: Final = {
    "simulate": ("traincast.cli.resources_simulate", "Simulate many runs, as a table to train an inspector on."),
    "whatif": ("traincast.cli.resources_whatif", "Ask what another GPU, other workers or another batch would change."),
}


class Commands(click.Group):
    """The group of commands; the module of a command is imported when the command is called, not for ``--help``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name, or return ``None``."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(
    cls=Commands,
    short_help="What a job draws from its machines.",
    epilog=options.example("resources whatif resnet50 --cluster dgx-a100:1 --global-batch 512 --gpu h100-sxm5-80gb"),
)
def resources() -> None:
    """Ask what a job draws from devices, memory and network, and compare real runs with forecasts."""
