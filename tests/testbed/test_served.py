"""Parameter servers with real compute learn what one process learns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from tests.testbed.serving import setup_of
from traincast.strategy.servers.setup import Piece
from traincast.testbed.parallel.servers import ServerSpan, run_servers, shards_of
from traincast.testbed.rank.serving import BlockPasses, SgdUpdates, parameters_of, shard_weights

STEPS, RATE = 4, 0.1


class SharedStore:
    """A store that threads of this process share."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._news:
            self._values[key] = value.encode()
            self._news.notify_all()

    def get(self, key: str) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: key in self._values, timeout=60.0)
            return self._values[key]


def model() -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.Sequential(nn.Linear(7, 6), nn.Tanh()), nn.Linear(6, 1)]


def batch(worker: int) -> torch.Tensor:
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(worker))


def loss(output: torch.Tensor) -> torch.Tensor:
    return (output - 1.0).square().mean()


def learned_alone(workers: int) -> list[np.ndarray]:
    """Parameters after SGD in one process on the batches of all workers."""
    blocks = nn.Sequential(*model())
    for _ in range(STEPS):
        blocks.zero_grad()
        for worker in range(workers):
            (loss(blocks(batch(worker))) / workers).backward()
        with torch.no_grad():
            for parameter in blocks.parameters():
                parameter.sub_(RATE * parameter.grad)
    return [parameters_of(block) for block in blocks]


@pytest.mark.parametrize(("workers", "servers", "sharding"), [(2, 1, "greedy"), (2, 2, "greedy"), (3, 2, "even")])
def test_synchronous_servers_learn_what_one_process_learns(
    monkeypatch: pytest.MonkeyPatch, workers: int, servers: int, sharding: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    setup = setup_of(workers=workers, servers=servers, sharding=sharding)
    pieces = [Piece(forward_s=0.0, backward_s=0.0, nbytes=float(parameters_of(block).nbytes)) for block in model()]
    parts, store = shards_of(setup, pieces), SharedStore()
    held, first = [model() for _ in range(workers)], shard_weights(model(), parts)

    def run(rank: int) -> list[ServerSpan]:
        passes = BlockPasses(held[rank], parts, batch(rank), loss) if rank < workers else None
        updates = SgdUpdates(parts, first, workers=workers, rate=RATE)
        return run_servers(rank, setup, pieces, steps=STEPS, store=store, passes=passes, updates=updates)

    with ThreadPoolExecutor(workers + servers) as pool:
        list(pool.map(run, range(workers + servers)))
    for blocks in held:
        for block, expected in zip(blocks, learned_alone(workers), strict=True):
            np.testing.assert_allclose(parameters_of(block), expected, rtol=2e-5, atol=1e-6)
    assert not np.allclose(parameters_of(held[0][0]), parameters_of(model()[0]), atol=1e-3)
