"""The command line: one verb per file, imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Final, NoReturn

import click

from traincast import __version__
from traincast.errors import RequestError, TraincastError

VERBS: Final = {
    "predict": ("forecasting.predict", "Forecast a training step, and the whole job."),
    "search": ("forecasting.search", "Find the best strategies, and the chance that each is the best."),
    "next": ("forecasting.next", "Tell what to measure next: what lowers the doubt most per dollar."),
    "capture": ("capture", "Trace a model and save its operator graph."),
    "models": ("catalog", "List the models of the zoo, or show one."),
    "clusters": ("catalog", "List the known machines and fitted clusters, or show one."),
    "devices": ("catalog", "List the known devices, or show one."),
    "runtimes": ("catalog", "List the known training frameworks, or show one."),
    "schedule": ("scheduling.schedule", "Replay a job log on a cluster under a scheduling policy."),
    "validate": ("real_runs.validate", "Compare forecasts with a table of measured runs."),
    "calibrate": ("real_runs.calibrate", "Learn a cluster from its own measured runs."),
    "fit": ("fitting.fit", "Fit bundles of operator and collective times, and of resource use, to measurements."),
    "profile": ("profiling.profile", "Measure operators and collectives on the machine at hand."),
    "monitor": ("resources.monitor", "Sample a real run: what it draws from its machine."),
    "resources": ("resources.group", "Ask what a job draws from its machines."),
    "trace": ("real_runs.trace", "Explain, replay and change what a profiler recorded."),
    "testbed": ("real_runs.testbed", "Train on this machine, and compare with the forecast."),
}


class Verbs(click.Group):
    """The group of verbs; a verb's module is imported when the verb is called, not for ``--help``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb of that name, or return ``None``."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(f"traincast.cli.{VERBS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing their modules."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="traincast")
def app() -> None:
    """Forecast distributed deep-learning training: step time and why, memory, timeline, job time and cost."""


def run() -> NoReturn:
    """Run :func:`main` as the console script, then end the process without the interpreter's clean-up.

    With PyTorch loaded, that clean-up takes most of a second. All output is flushed first.
    """
    code: object = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # the failure was reported, or the reader has gone
                stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, then exit: 0 if done, 2 for an impossible request, 1 for a failure, 130 if interrupted.

    A refused request or a failure prints one line to standard error.
    """
    try:
        code = app.main(args=arguments, prog_name="traincast", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:  # no verb was given: list the verbs
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        hint = " (traincast --help lists the verbs)" if isinstance(error, click.UsageError) and not error.ctx else ""
        _fail(" ".join(error.format_message().split()) + hint, 2)
    except RequestError as error:
        _fail(str(error), 2)
    except TraincastError as error:
        _fail(str(error), 1)
    except RecursionError:
        _fail("the request is nested too deeply", 2)
    except MemoryError:
        _fail("out of memory: ask for fewer ranks or microbatches", 1)
    except BrokenPipeError:
        from traincast.cli.output import close_quietly

        close_quietly()
    except OSError as error:
        what = "write standard output" if error.filename is None else f"read or write {error.filename}"
        _fail(f"cannot {what}: {(error.strerror or str(error)).lower()}", 1)


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    with suppress(OSError):
        click.echo(f"traincast: {line}", err=True)
    sys.exit(code)
