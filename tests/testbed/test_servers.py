"""Parameter servers that really run: the order of what happens, and the same figures as a forecast has."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.testbed import serving
from tests.testbed.conftest import needs_shaping
from tests.testbed.serving import PIECES, setup_of
from traincast.simulate.servers import measure
from traincast.strategy.servers.setup import ServerSetup
from traincast.strategy.servers.tasks import ServerRole
from traincast.testbed.network import loopback, shaped
from traincast.testbed.parallel.servers import ServerSpan, nodes_of, rows_of, shards_of, timeline_of
from traincast.testbed.rank.launch import launch

STEPS = 6


def run(folder: Path, rates: list[float] | None = None, **values: object) -> tuple[ServerSetup, list[ServerSpan]]:
    """The setup and the spans of all ranks of a run."""
    setup = setup_of(**values)
    ranks = setup.workers + setup.servers
    (folder / "setup").write_text(json.dumps(values), encoding="utf-8")
    words = [sys.executable, serving.__file__, str(folder), str(STEPS)]
    with shaped(rates) if rates else loopback(setup.num_nodes) as network:
        launch([words] * ranks, network, nodes=nodes_of(setup), timeout_s=120.0)
    return setup, [
        ServerSpan(*span) for rank in range(ranks) for span in json.loads((folder / f"rank{rank}.json").read_bytes())
    ]


def by_role(spans: list[ServerSpan]) -> dict[int, dict[tuple[int, ...], ServerSpan]]:
    """Spans by role and by (step, worker, piece, server)."""
    found: dict[int, dict[tuple[int, ...], ServerSpan]] = defaultdict(dict)
    for span in spans:
        found[span.role][span.step, span.worker, span.piece, span.server] = span
    return found


@pytest.mark.long(but=1)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(("servers", "sharding"), [(1, "greedy"), (2, "greedy"), (2, "even")])
def test_everything_happens_in_the_order_of_a_forecast(
    tmp_path: Path, servers: int, sharding: str, asynchronous: bool
) -> None:
    setup, spans = run(tmp_path, workers=2, servers=servers, sharding=sharding, asynchronous=asynchronous)
    parts, found = shards_of(setup, PIECES), by_role(spans)
    assert sum(part.nbytes for part in parts) == sum(piece.nbytes for piece in PIECES)
    passes, messages = STEPS * 2 * len(PIECES), STEPS * 2 * len(parts)
    updates = messages if asynchronous else messages // 2
    counts = {role: len(spans) for role, spans in found.items()}
    assert counts == {
        ServerRole.FORWARD: passes,
        ServerRole.BACKWARD: passes,
        ServerRole.PUSH: messages,
        ServerRole.PULL: messages,
        ServerRole.UPDATE: updates,
    }
    for (step, worker, piece, server), push in found[ServerRole.PUSH].items():
        assert found[ServerRole.BACKWARD][step, worker, piece, -1].end <= push.start
        update = found[ServerRole.UPDATE][step, worker if asynchronous else -1, piece, server]
        pull = found[ServerRole.PULL][step, worker, piece, server]
        assert push.end <= update.start <= update.end <= pull.start <= pull.end
        if step + 1 < STEPS:
            assert pull.end <= found[ServerRole.FORWARD][step + 1, worker, piece, -1].start
    timeline = timeline_of(setup, PIECES, spans)
    assert np.isfinite(timeline.start).all()
    assert np.isfinite(timeline.end).all()
    assert measure(setup, timeline).step_s >= sum(piece.forward_s + piece.backward_s for piece in PIECES) - 1e-9


@pytest.mark.long(guard="test_everything_happens_in_the_order_of_a_forecast")
def test_messages_of_a_connection_go_one_after_the_other(tmp_path: Path) -> None:
    _, spans = run(tmp_path, workers=2, servers=1)
    for role in (ServerRole.PUSH, ServerRole.PULL):
        for worker in range(2):
            own = sorted((s.start, s.end) for s in spans if s.role == role and s.worker == worker)
            assert all(one[1] <= other[0] for one, other in pairwise(own))


def test_a_slow_worker_computes_longer_and_synchronous_workers_wait_for_it(tmp_path: Path) -> None:
    setup, spans = run(tmp_path, workers=2, servers=1, worker_factors=(1.0, 3.0))
    lengths = [{round(s.end - s.start, 9) for s in spans if (s.role, s.worker, s.piece) == (0, w, 0)} for w in (0, 1)]
    assert lengths == [{0.004}, {0.012}]
    step_s = measure(setup, timeline_of(setup, PIECES, spans)).step_s
    assert step_s >= 3.0 * sum(piece.forward_s + piece.backward_s for piece in PIECES) - 1e-9


@pytest.mark.long(but=1)
@needs_shaping
@pytest.mark.parametrize("own_nodes", [True, False], ids=["own nodes", "nodes of workers"])
def test_a_step_takes_as_long_as_the_link_of_the_server_needs(tmp_path: Path, own_nodes: bool) -> None:
    setup, spans = run(tmp_path, [5e6] * (3 if own_nodes else 2), workers=2, servers=1, own_nodes=own_nodes)
    remote = 2 if own_nodes else 1  # a worker on the server's node does not use the link
    step_s = measure(setup, timeline_of(setup, PIECES, spans)).step_s
    assert step_s > 0.95 * remote * sum(piece.nbytes for piece in PIECES) / 5e6


def test_rows_of_a_run_show_a_message_at_both_ends() -> None:
    setup = setup_of(workers=2, servers=2)
    spans = [
        ServerSpan(ServerRole.FORWARD, 3, 1, -1, 0, -1, 1.0, 2.0, 0.0),
        ServerSpan(ServerRole.PUSH, 3, 1, 0, 0, 2, 2.0, 3.0, 40.0),
        ServerSpan(ServerRole.UPDATE, 3, -1, 1, 0, 2, 3.0, 4.0, 40.0),
    ]
    rows = list(rows_of(setup, spans, ["embedding"]))
    assert [(rank, row.peer, row.stream, row.category, row.name) for rank, row in rows] == [
        (1, -1, "compute", "forward", "forward embedding"),
        (1, 2, "communication", "communication", "push embedding"),
        (2, 1, "communication", "communication", "push embedding"),
        (3, -1, "compute", "optimizer", "update embedding"),
    ]
    assert {(row.label, row.nbytes) for _, row in rows} == {("forward", 0.0), ("push", 40.0), ("update", 40.0)}
