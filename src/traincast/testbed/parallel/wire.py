"""Connections between workers and parameter servers: messages one after the other, both ways at once.

Servers of TensorFlow and MXNet speak TCP: a push is sent when its gradient exists, whether or not the server waits for
it, and a server serves whichever worker comes first. Point-to-point messages of gloo do neither (a message moves only
after its receive is posted, and nothing waits for the first of several senders), so these are plain sockets.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from traincast.errors import TraincastError
from traincast.testbed.rank.recorder import now

Store = Any
"""A store of ``torch.distributed``: ``set`` and a ``get`` that waits."""
_HEADER: Final = struct.Struct("!iiqd")
_HELLO: Final = struct.Struct("!i")
_PLACE: Final = "traincast/server/{}"


class WireMessage(NamedTuple):
    """A message that has arrived: the bytes of a shard in a step.

    ``start`` and ``end`` are when it was on the wire: it starts when it was sent, but not before the message ahead of
    it on the same connection has arrived.
    """

    step: int
    shard: int
    start: float
    end: float


class Connection:
    """One end of a connection.

    ``room`` returns the memory into which the bytes of a shard are received. ``arrived`` is called, in a thread of the
    connection, with each message that arrives, and with None when no more will come.
    """

    def __init__(
        self, link: socket.socket, *, room: Callable[[int], memoryview], arrived: Callable[[WireMessage | None], None]
    ) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link, self._room, self._arrived = link, room, arrived
        self._outgoing: queue.SimpleQueue[tuple[int, int, memoryview] | None] = queue.SimpleQueue()
        self.failure: Exception | None = None
        loops = (self._send, self._receive)
        self._threads = [threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def send(self, step: int, shard: int, content: memoryview) -> None:
        """Sends the bytes of a shard after everything sent before; returns at once."""
        self._outgoing.put((step, shard, content))

    def close(self) -> None:
        """Ends sending once everything has been sent, and waits until the other end has done the same."""
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join()
        self._link.close()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # told to the thread that waits for a message
            self.failure = error
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
            self._arrived(None)

    def _send(self) -> None:
        while (message := self._outgoing.get()) is not None:
            step, shard, content = message
            self._link.sendall(_HEADER.pack(step, shard, content.nbytes, now()))
            self._link.sendall(content)
        self._link.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        header = memoryview(bytearray(_HEADER.size))
        previous = 0.0
        while self._fill(header):
            step, shard, nbytes, sent = _HEADER.unpack(header)
            if nbytes and not self._fill(self._room(shard)[:nbytes]):
                raise TraincastError("the connection to a parameter server was closed in the middle of a message")
            end = now()
            self._arrived(WireMessage(step, shard, max(sent, previous), end))
            previous = end
        self._arrived(None)

    def _fill(self, room: memoryview) -> bool:
        """Receives as many bytes as ``room`` has; returns False if the other end has finished sending."""
        done = 0
        while done < len(room):
            got = self._link.recv_into(room[done:], 0, socket.MSG_WAITALL)  # one wait per message, outside of Python
            if not got:
                if done:
                    raise TraincastError("the connection to a parameter server was closed in the middle of a message")
                return False
            done += got
        return True


def connect(store: Store, worker: int, server: int) -> socket.socket:
    """Connects a worker to a server, once the server has told the store where it is."""
    address, _, port = store.get(_PLACE.format(server)).decode().rpartition(":")
    link = socket.create_connection((address, int(port)))
    link.sendall(_HELLO.pack(worker))
    return link


def accept(store: Store, server: int, workers: int) -> list[socket.socket]:
    """Tells the store where this server is, and returns the connections of all workers, in their order."""
    links: dict[int, socket.socket] = {}
    with socket.create_server(("", 0)) as listening:
        store.set(_PLACE.format(server), f"{_own_address()}:{listening.getsockname()[1]}")
        while len(links) < workers:
            link, _ = listening.accept()
            (worker,) = _HELLO.unpack(link.recv(_HELLO.size, socket.MSG_WAITALL))
            links[worker] = link
    return [links[worker] for worker in range(workers)]


def _own_address() -> str:
    """The address of this process on the network of rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        address: str = probe.getsockname()[0]
        return address
