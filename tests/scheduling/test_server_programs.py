"""Jobs with parameter servers that run together: closed forms of one message, nodes that differ, and forecasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import CNN, AnalyticalCostModel, graph_of
from tests.scheduling.waves import square_wave
from traincast import Link, predict
from traincast.scheduling.sharing.programs import forecast_program
from traincast.scheduling.sharing.server_programs import ServerProgram
from traincast.scheduling.sharing.together import slowdowns, together
from traincast.strategy.servers.tasks import Piece, ServerSetup

NIC = Link(name="nic", bandwidth=100.0, latency_s=0.0)
LOCAL = Link(name="local", bandwidth=1e9, latency_s=0.0)


def program(*, nbytes: float = 100.0, compute_s: float = 2.0, workers: int = 1, **more: object) -> ServerProgram:
    """Workers with one piece, and one server on a node of its own: a push and a pull of 1 s each."""
    setup = ServerSetup(servers=1, workers=workers, worker_nic=NIC, server_nic=NIC, local=LOCAL, **more)  # type: ignore[arg-type]
    piece = Piece(forward_s=compute_s / 2, backward_s=compute_s / 2, nbytes=nbytes)
    return ServerProgram(setup=setup, pieces=(piece,))


def test_a_step_alone_is_compute_push_and_pull() -> None:
    assert program().step_s == pytest.approx(4.0)
    assert program().slowed(3).step_s == pytest.approx(12.0)
    assert program(workers=2).step_s == pytest.approx(6.0)  # both push into the server's node at once


def test_jobs_on_other_nodes_do_not_meet() -> None:
    assert together([program()] * 2, nodes=[(0, 1), (2, 3)]) == pytest.approx([1.0, 1.0])
    assert together([program()] * 2, nodes=[(0, 1), (-1, -1)]) == pytest.approx([1.0, 1.0])


def test_two_jobs_that_push_and_pull_at_once_take_twice_the_communication() -> None:
    both = [program()] * 2
    assert together(both, phases=[0.0, 0.0], nodes=[(0, 1), (0, 1)]) == pytest.approx([6.0 / 4.0] * 2)
    assert together(both, phases=[0.0, 0.5], nodes=[(0, 1), (0, 1)]) == pytest.approx([1.0] * 2)


def test_a_push_does_not_slow_a_pull() -> None:
    """One job begins to push when the other begins to pull: opposite directions of both links."""
    both = [program()] * 2
    assert together(both, phases=[0.0, 0.25], nodes=[(0, 1), (0, 1)]) == pytest.approx([1.0] * 2)


def test_jobs_meet_only_on_the_node_that_they_share() -> None:
    """A job that fills what a node receives slows the pushes into a server there, not into one elsewhere."""
    other = square_wave(busy_s=1.0, idle_s=0.0, resource="receive")
    at_server = together([program(), other], nodes=[(0, 1), (1,)])[0]
    at_worker = together([program(), other], nodes=[(0, 1), (0,)])[0]
    assert at_server == pytest.approx(5.0 / 4.0)  # the push takes 2 s
    assert at_worker == pytest.approx(5.0 / 4.0)  # the pull does
    sends = square_wave(busy_s=1.0, idle_s=0.0, resource="send")
    assert together([program(), sends], nodes=[(0, 1), (2,)]) == pytest.approx([1.0, 1.0])


def test_a_node_with_more_nics_than_the_job_has_is_slower_only_when_full() -> None:
    half = program().scaled(0.5)
    assert half.step_s == pytest.approx(4.0)
    assert together([half] * 2, phases=[0.0, 0.0], nodes=[(0, 1), (0, 1)]) == pytest.approx([1.0, 1.0])
    assert slowdowns([half] * 3, nodes=[(0, 1)] * 3)[0] > 1.0


def test_many_pieces_are_joined_and_the_step_stays_that_of_the_forecast() -> None:
    made = predict(
        graph_of(CNN), cluster="p3.16xlarge:2", strategy="dp=16,servers=2", global_batch=64,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip
    found = forecast_program(made)
    assert isinstance(found, ServerProgram)
    assert made.servers is not None
    assert len(found.pieces) < len(made.servers.pieces)
    assert sum(piece.nbytes for piece in found.pieces) == pytest.approx(sum(p.nbytes for p in made.servers.pieces))
    assert found.step_s == pytest.approx(made.report.step_s)
    twice = slowdowns([found] * 2, nodes=[(0, 1)] * 2)
    assert all(1.0 < slowdown <= 2.0 for slowdown in twice)
    assert slowdowns([found.only("device")] * 2) == (1.0, 1.0)


def test_a_step_of_asynchronous_workers_is_the_mean_of_theirs() -> None:
    """Workers that compute for 2 s and for 4 s and hardly send: 2 s and 4 s a step, 3 s on average."""
    slow = replace(program(workers=2, asynchronous=True, nbytes=1e-3).setup, worker_factors=(1.0, 2.0))
    found = ServerProgram(setup=slow, pieces=program(nbytes=1e-3).pieces)
    assert found.step_s == pytest.approx(3.0, rel=1e-3)


def test_a_forecast_of_asynchronous_workers_keeps_its_works() -> None:
    """The worker beside the server has its weights at once, so its steps are shorter; nothing is stretched for that."""
    made = predict(
        graph_of(CNN), cluster="p3.16xlarge:2x1", strategy="dp=2,servers=1,async", global_batch=64,
        cost_model=AnalyticalCostModel(),
    )  # fmt: skip
    found = forecast_program(made)
    assert isinstance(found, ServerProgram)
    assert found.step_s >= made.report.step_s
    assert made.servers is not None
    assert len(found.pieces) == len(made.servers.pieces)
    assert found.factor == pytest.approx(1.0, rel=0.1)
