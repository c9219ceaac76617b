"""Starts the processes of a testbed, one per rank, each on its node of the network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final

from traincast.errors import TraincastError
from traincast.processes import end, environment_of, wait_for
from traincast.testbed.enter import command_in
from traincast.testbed.network import NodeNetwork

_PORT: Final = 29500
_PATIENCE_S: Final = 2.0
_TAIL: Final = 65536
_LOST: Final = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out")
"""What a rank says when another rank has gone."""


def launch(
    commands: Sequence[Sequence[str]],
    network: NodeNetwork,
    *,
    nodes: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    cores: Sequence[Sequence[int]] = (),
    urgent: bool = False,
    timeout_s: float | None = None,
    stdout: IO[bytes] | None = None,
) -> None:
    """Runs one command per rank and returns when all have ended with exit code 0.

    ``nodes`` is the node of each rank; without it, rank i is on node i. The environment of a rank is that of this
    process, then ``environment``, then what ``torch.distributed`` needs: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``
    (the node of rank 0), ``MASTER_PORT`` and ``GLOO_SOCKET_IFNAME``. ``cores`` pins each rank to some cores. Rank 0
    writes to ``stdout``; nothing else is shown.

    ``urgent`` ranks run before all usual processes of the machine (``SCHED_RR``; without root they do not). Use it for
    ranks that mostly sleep and must wake up in time, as those with emulated compute.

    If a rank fails, or ``timeout_s`` seconds pass, all ranks are ended, and the error tells in one line the last thing
    that the failing rank wrote to its standard error. All ranks are ended too if this process is interrupted or killed.
    """
    ranks = len(commands)
    placed = [network.nodes[node] for node in (nodes or range(ranks))]
    port = _PORT if network.is_shaped else _free_port()
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        stack.callback(_end, processes, network)
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        for rank, (words, node) in enumerate(zip(commands, placed, strict=True)):
            pins = tuple(cores[rank]) if cores else ()
            process = subprocess.Popen(  # noqa: S603  (commands of the testbed)
                command_in(list(words), namespace=node.namespace, cores=pins, urgent=urgent),
                env={
                    **os.environ,
                    **(environment or {}),
                    **environment_of(rank, ranks, address=placed[0].address, port=port),
                    "GLOO_SOCKET_IFNAME": node.interface,
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout if rank == 0 and stdout is not None else subprocess.DEVNULL,
                stderr=errors[rank],
                start_new_session=True,
            )
            processes.append(process)
            network.janitor.watch_group(process.pid)
        try:
            failed = wait_for(processes, timeout_s=timeout_s)
        except TimeoutError:
            running = [str(rank) for rank, process in enumerate(processes) if process.poll() is None]
            raise TraincastError(
                f"the run was ended after {timeout_s:g} s: rank {', '.join(running)} of {ranks} still ran; allow more "
                "time, or ask for fewer steps"
            ) from None
        if failed:
            raise TraincastError(_reason(failed, processes, errors))


def _end(processes: Sequence[subprocess.Popen[bytes]], network: NodeNetwork) -> None:
    end(processes, patience_s=_PATIENCE_S)
    for process in processes:
        with suppress(ProcessLookupError):  # children that a rank left behind
            os.killpg(process.pid, signal.SIGKILL)
        network.janitor.forget_group(process.pid)


def _reason(failed: Sequence[int], processes: Sequence[subprocess.Popen[bytes]], errors: Sequence[IO[bytes]]) -> str:
    """One line about the rank that failed first. One that only lost its connection to another is not taken for it."""
    said = {rank: _last_line(errors[rank]) for rank in failed}
    first = min(failed, key=lambda rank: any(word in said[rank].lower() for word in _LOST))
    code = processes[first].returncode
    how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
    return f"rank {first} of {len(processes)} failed ({how}): {said[first] or 'it wrote no message'}"


def _last_line(written: IO[bytes]) -> str:
    size = written.seek(0, os.SEEK_END)
    written.seek(max(0, size - _TAIL))
    lines = [line.strip() for line in written.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
