"""Starts the processes of a testbed, one per rank, each on its node of the network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import IO, Final

from traincast.errors import TraincastError
from traincast.processes.run import (
    ProcessStart,
    Starter,
    environment_of,
    first_failure,
    start_program,
    started,
    wait_for,
)
from traincast.testbed.network import NodeNetwork

PORT: Final = 29500
"""Where rank 0 listens in a network of its own."""
_PATIENCE_S: Final = 2.0


def launch(
    commands: Sequence[Sequence[str]],
    network: NodeNetwork,
    *,
    nodes: Sequence[int] = (),
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[Sequence[int]] = (),
    urgent: bool = False,
    timeout_s: float | None = None,
    stdout: IO[bytes] | None = None,
    watching: Callable[[Sequence[int]], AbstractContextManager[None]] | None = None,
    start: Starter = start_program,
) -> None:
    """Runs one command per rank and returns when all have ended with exit code 0.

    ``nodes`` is the node of each rank; without it, rank i is on node i. Runs that share a network need a ``port`` each.
    The environment of a rank is that of this process, then ``environment``, then what ``torch.distributed`` needs:
    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` (the node of rank 0), ``MASTER_PORT`` and ``GLOO_SOCKET_IFNAME``.
    ``cores`` pins each rank to some cores. Rank 0 writes to ``stdout``; nothing else is shown.

    ``urgent`` ranks run before all usual processes of the machine (``SCHED_RR``; without root they do not). Use it for
    ranks that mostly sleep and must wake up in time, as those with emulated compute.

    ``watching`` is entered with the numbers of the ranks' processes once all have started, and left when all have
    ended. ``start`` starts a process; by default each command is a program of its own.

    If a rank fails, or ``timeout_s`` seconds pass, all ranks are ended, and the error tells in one line the last thing
    that the failing rank wrote to its standard error. All ranks are ended too if this process is interrupted or killed.
    """
    ranks = len(commands)
    placed = [network.nodes[node] for node in (nodes or range(ranks))]
    port = port or (PORT if network.is_shaped else _free_port())
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        starts = [
            ProcessStart(
                environment={
                    **os.environ,
                    **(environment or {}),
                    **environment_of(rank, ranks, address=placed[0].address, port=port),
                    "GLOO_SOCKET_IFNAME": node.interface,
                },
                namespace=node.namespace,
                cores=tuple(cores[rank]) if cores else (),
                urgent=urgent,
                stdout=stdout if rank == 0 and stdout is not None else subprocess.DEVNULL,
                stderr=errors[rank],
            )
            for rank, node in enumerate(placed)
        ]
        processes = stack.enter_context(
            started(commands, starts, start=start, janitor=network.janitor, patience_s=_PATIENCE_S)
        )
        if watching is not None:
            stack.enter_context(watching([process.pid for process in processes]))
        try:
            failed = wait_for(processes, timeout_s=timeout_s)
        except TimeoutError:
            running = [str(rank) for rank, process in enumerate(processes) if process.poll() is None]
            raise TraincastError(
                f"the run was ended after {timeout_s:g} s: rank {', '.join(running)} of {ranks} still ran; allow more "
                "time, or ask for fewer steps"
            ) from None
        if failed:
            first, said = first_failure(failed, errors)
            code = processes[first].returncode
            assert code is not None
            how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
            raise TraincastError(f"rank {first} of {ranks} failed ({how}): {said or 'it wrote no message'}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
