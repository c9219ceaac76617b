"""One rank of a run with parameter servers, as a program: ``serving.py FOLDER STEPS``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from traincast import Link
from traincast.strategy.servers.setup import Piece, ServerSetup
from traincast.testbed.parallel.servers import run_servers

LINK = Link(name="link", bandwidth=5e6, latency_s=1e-4)


def setup_of(**values: object) -> ServerSetup:
    """Workers and servers whose links move 5 MB/s."""
    return ServerSetup(worker_nic=LINK, server_nic=LINK, local=LINK, **values)  # type: ignore[arg-type]


PIECES = [Piece(forward_s=0.004 * n, backward_s=0.008 * n, nbytes=40_000.0 * n) for n in (1, 2, 3)]


class FolderStore:
    """A store of values that processes share through files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: str) -> None:
        path = self._folder / key.replace("/", "-")
        path.with_suffix(".new").write_text(value, encoding="utf-8")
        path.with_suffix(".new").rename(path)

    def get(self, key: str) -> bytes:
        path = self._folder / key.replace("/", "-")
        while not path.exists():
            time.sleep(0.002)
        return path.read_bytes()


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    setup = setup_of(**json.loads((folder / "setup").read_bytes()))
    spans = run_servers(rank, setup, PIECES, steps=int(sys.argv[2]), store=FolderStore(folder))
    (folder / f"rank{rank}.json").write_text(json.dumps(spans), encoding="utf-8")


if __name__ == "__main__":
    main()
