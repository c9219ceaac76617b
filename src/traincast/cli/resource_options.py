"""Options of verbs that show what a job draws."""

from __future__ import annotations

import click

from traincast.cli.options import Decorator, F


def resources_options() -> Decorator:
    """Decorate a verb with the options of what a step draws from its machines."""

    def decorate(function: F) -> F:
        for option in (
            click.option(
                "--resources-csv", metavar="FILE", help="Write the use of resources over time to FILE, as CSV."
            ),
            hz(),
            click.option(
                "--resources",
                is_flag=True,
                help="Show what the step draws over time from devices, memory, network and host.",
            ),
        ):
            function = option(function)
        return function

    return decorate


def hz() -> Decorator:
    """The option --hz."""
    return click.option(
        "--hz",
        type=float,
        metavar="RATE",
        help="Samples per second, as a monitor would take them; 0: as fine as the simulation. Default: 50.",
    )
