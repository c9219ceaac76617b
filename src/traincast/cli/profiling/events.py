"""``traincast profile events``: measure the distinct works of one plan."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks, words_of
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json
from traincast.cli.profiling.output import only_rank_0_speaks
from traincast.errors import RequestError
from traincast.profiling.events.ask import EventsAsk
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.profiling.events.measure import EventsPlan, EventsProfile

_STEPS = 100
_DEFAULTS = {"runtime": "gloo", "repeats": 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsShown(Shown):
    """What ``profile events`` writes and shows."""

    output: Annotated[
        str, Option("Write to PATH: a folder of events; a folder that exists is extended.", "PATH", short="-o")
    ]
    plan: Annotated[bool, Option("Only say what would be measured and how long it takes.")] = False


@click.command(
    name="events",
    epilog=options.example(
        "profile events resnet18 --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8 -o events"
    ),
)
@asks(EventsAsk, EventsShown, defaults=_DEFAULTS)
def events(request: EventsAsk, shown: EventsShown) -> None:
    """Measure the distinct works of one plan of MODEL: operators, collectives and messages, and nothing else.

    `traincast predict --events FOLDER` uses them. On this machine, two processes measure. On GPUs or on several nodes,
    start this command with torchrun or Slurm on one or two nodes; it prints the line.
    """
    from traincast.graph.capture.capture import require_torch
    from traincast.profiling.collectives.measure import is_launched
    from traincast.profiling.events.measure import measure_events, plan_events

    with only_rank_0_speaks():
        folder, as_json = Path(shown.output), shown.as_json
        if is_launched():
            require_torch()
            from traincast.profiling.events.worker import EventsWorker

            speaks = os.environ.get("RANK") == "0"
            say = (lambda text: click.echo(text, err=True)) if speaks else (lambda text: None)
            found = EventsWorker(request, folder, say=say).run()
            if found is not None:
                _show(request, found, as_json=as_json)
            return
        plan = plan_events(request, folder)
        if not as_json:
            _announce(plan)
        lines = _lines(request, folder)
        if lines and not as_json:
            for line in lines:
                console().print(line, markup=False, soft_wrap=True)
        if shown.plan or _needs_gpus(request):
            if as_json:
                print_json(_facts(plan) | {"commands": lines})
            return
        _show(request, measure_events(request, folder), as_json=as_json)


def _facts(plan: EventsPlan) -> dict[str, object]:
    return {
        "works": plan.works,
        "known": plan.known,
        "operators": len(plan.operators),
        "messages": len(plan.messages),
        "seconds": plan.seconds,
    }


def _announce(plan: EventsPlan) -> None:
    left = plan.works - plan.known
    console().print(
        f"{plan.works} distinct works, {plan.known} of them measured before; {left} to measure "
        f"({len(plan.operators)} operators, {len(plan.messages)} messages): about {format_seconds(plan.seconds)}"
    )


def _needs_gpus(request: EventsAsk) -> bool:
    """Whether only processes with GPUs can measure; refuses nothing, because the command to paste is the answer."""
    from traincast.cluster import load_cluster
    from traincast.profiling.events.request import backend_of

    return backend_of(load_cluster(request.cluster, hosts=True), request.compute) == "nccl"


def _lines(request: EventsAsk, folder: Path) -> list[str]:
    """Return the commands that measure on the nodes of the cluster, if it has GPUs or several nodes."""
    from traincast.cluster import load_cluster

    place = load_cluster(request.cluster, hosts=True)
    if request.compute != "real" or (place.num_nodes == 1 and not _needs_gpus(request)):
        return []
    words = shlex.join(["profile", "events", *words_of(request, defaults=_DEFAULTS), "-o", str(folder)])
    nodes, each = min(2, place.num_nodes), place.devices_per_node
    where = f"--nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint $HOST:29500"
    return [
        f"on {nodes} node{'s' if nodes > 1 else ''}, run on each:",
        f"  torchrun {where if nodes > 1 else f'--nproc-per-node {each}'} -m traincast {words}",
        "with Slurm:",
        f"  srun --nodes {nodes} --ntasks-per-node 1 torchrun --nnodes {nodes} --nproc-per-node {each} "
        f'--rdzv-backend c10d --rdzv-endpoint "$(scontrol show hostnames | head -1):29500" -m traincast {words}',
    ]


def _show(request: EventsAsk, found: EventsProfile, *, as_json: bool) -> None:
    step_s, ranks = _step_of(request, found.output)
    cost = found.seconds * max(1, found.processes)
    run = step_s * _STEPS * ranks
    if as_json:
        print_json(
            {
                "folder": str(found.output),
                "works": found.works,
                "known": found.known,
                "measured": found.measured,
                "seconds": found.seconds,
                "processes": found.processes,
                "step_s": step_s,
                "rank_seconds_of_100_steps": run,
                "failures": list(found.failures),
                "warnings": list(found.warnings),
            }
        )
        return
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    if found.failures:
        console().print(f"not measured, estimated instead: {', '.join(found.failures)}", markup=False)
    console().print(
        f"{found.measured} works measured in {format_seconds(found.seconds)} by {found.processes} processes "
        f"({cost:.3g} process-seconds); {_STEPS} steps on all {ranks} ranks would take {run:.3g} rank-seconds"
    )
    console().print(f"events: {found.output}", markup=False)


def _step_of(request: EventsAsk, folder: Path) -> tuple[float, int]:
    """Return the forecast seconds of a step with the events in ``folder``, and its number of ranks."""
    from traincast.forecast import predict

    try:
        result = predict(replace(request.step(), events=str(folder)))
    except RequestError as error:
        click.echo(f"warning: no forecast with these events: {error}", err=True)
        return 0.0, 0
    return result.report.step_s, result.request.cluster.num_devices
