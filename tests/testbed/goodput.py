"""Measures how fast two nodes of a network exchange messages over one TCP connection.

This file is also the program that the two ranks run: rank 0 sends each message and waits for an answer of one byte,
rank 1 receives. It imports only the standard library at the start of that program.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.testbed.network import NodeNetwork


def measure_messages(
    network: NodeNetwork, sizes: Sequence[int], *, repeats: int = 5, sender: int = 0, receiver: int = 1
) -> dict[int, list[float]]:
    """Returns the seconds of each repetition for every size in bytes, from the first byte to the answer.

    One message of the largest size goes first and is not counted. Both processes are urgent, so that a busy machine
    does not look like a slow network.
    """
    from traincast.testbed.rank.launch import launch

    words = [sys.executable, "-I", "-S", str(Path(__file__)), str(repeats), *map(str, sizes)]
    with tempfile.TemporaryFile() as out:
        launch([words, words], network, nodes=(sender, receiver), urgent=True, timeout_s=600.0, stdout=out)
        out.seek(0)
        return {int(size): seconds for size, seconds in json.load(out).items()}


def _send(repeats: int, sizes: list[int], port: int) -> dict[int, list[float]]:
    with socket.create_server(("", port)) as server:
        link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for size, counts in [(max(sizes), False), *((size, True) for size in sizes for _ in range(repeats))]:
        content = bytes(size)
        time.sleep(0.02)  # a burst may gather, as between the messages of a step
        start = time.perf_counter()
        link.sendall(content)
        link.recv(1)
        if counts:
            seconds[size].append(time.perf_counter() - start)
    return seconds


def _receive(repeats: int, sizes: list[int], address: str, port: int) -> None:
    link = _connected(address, port)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room = memoryview(bytearray(1 << 20))
    for size in [max(sizes), *(size for size in sizes for _ in range(repeats))]:
        left = size
        while left:
            got = link.recv_into(room[: min(left, len(room))])
            if not got:
                sys.exit("connection closed by the sender")
            left -= got
        link.sendall(b"!")


def _connected(address: str, port: int) -> socket.socket:
    end = time.monotonic() + 30.0
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _main() -> None:
    repeats, *sizes = map(int, sys.argv[1:])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        json.dump(_send(repeats, sizes, port), sys.stdout)
    else:
        _receive(repeats, sizes, address, port)


if __name__ == "__main__":
    _main()
