"""Options of verbs that show what a job draws."""

from __future__ import annotations

import click

from traincast.cli.options import Decorator
from traincast.resources.ask import RATE


def hz() -> Decorator:
    """The option --hz."""
    return click.option("--hz", type=float, metavar=RATE.metavar, help=RATE.help)
