"""Starts the processes of a testbed, one per rank, each on its node of the network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeAlias

from traincast.errors import TraincastError
from traincast.processes import Process, end, environment_of, wait_for
from traincast.testbed.network.enter import command_in
from traincast.testbed.network.network import NodeNetwork

PORT: Final = 29500
"""Where rank 0 listens in a network of its own."""
_PATIENCE_S: Final = 2.0
_TAIL: Final = 65536
_LOST: Final = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out")
"""What a rank says when another rank has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """How the process of a rank starts: without ``stdout``, nothing that it writes there is kept."""

    environment: Mapping[str, str]
    namespace: Path | None
    cores: tuple[int, ...]
    urgent: bool
    stdout: IO[bytes] | None
    stderr: IO[bytes]


Starter: TypeAlias = Callable[[Sequence[str], RankStart], Process]
"""Starts the command of a rank."""


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
    start: Starter | None = None,
) -> None:
    """Runs one command per rank and returns when all have ended with exit code 0.

    ``nodes`` is the node of each rank; without it, rank i is on node i. Runs that share a network need a ``port`` each.
    The environment of a rank is that of this
    process, then ``environment``, then what ``torch.distributed`` needs: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``
    (the node of rank 0), ``MASTER_PORT`` and ``GLOO_SOCKET_IFNAME``. ``cores`` pins each rank to some cores. Rank 0
    writes to ``stdout``; nothing else is shown.

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
    processes: list[Process] = []
    with ExitStack() as stack:
        stack.callback(_end, processes, network)
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        for rank, (words, node) in enumerate(zip(commands, placed, strict=True)):
            pins = tuple(cores[rank]) if cores else ()
            process = (start or start_program)(
                list(words),
                RankStart(
                    environment={
                        **os.environ,
                        **(environment or {}),
                        **environment_of(rank, ranks, address=placed[0].address, port=port),
                        "GLOO_SOCKET_IFNAME": node.interface,
                    },
                    namespace=node.namespace,
                    cores=pins,
                    urgent=urgent,
                    stdout=stdout if rank == 0 else None,
                    stderr=errors[rank],
                ),
            )
            processes.append(process)
            network.janitor.watch_group(process.pid)
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
            raise TraincastError(_reason(failed, processes, errors))


def start_program(words: Sequence[str], how: RankStart) -> Process:
    """Starts a command as a program in a session of its own."""
    return subprocess.Popen(  # noqa: S603  (commands of the testbed)
        command_in(list(words), namespace=how.namespace, cores=how.cores, urgent=how.urgent),
        env=dict(how.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if how.stdout is None else how.stdout,
        stderr=how.stderr,
        start_new_session=True,
    )


def _end(processes: Sequence[Process], network: NodeNetwork) -> None:
    end(processes, patience_s=_PATIENCE_S)
    for process in processes:
        with suppress(ProcessLookupError):  # children that a rank left behind
            os.killpg(process.pid, signal.SIGKILL)
        network.janitor.forget_group(process.pid)


def _reason(failed: Sequence[int], processes: Sequence[Process], errors: Sequence[IO[bytes]]) -> str:
    """One line about the rank that failed first. One that only lost its connection to another is not taken for it."""
    said = {rank: _last_line(errors[rank]) for rank in failed}
    first = min(failed, key=lambda rank: any(word in said[rank].lower() for word in _LOST))
    code = processes[first].returncode
    assert code is not None
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
