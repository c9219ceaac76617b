"""Studies fan out, and say the same wherever they run."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scheduling.described import MLP, cluster, log
from tests.scheduling.queues import queue
from traincast import FailureLaw, Failures, Job, RequestError, SharedCluster
from traincast.imports import import_callable
from traincast.scheduling import Given, measure, simulate
from traincast.scheduling.estimates.forecasts import ForecastSpeeds, forecast_durations
from traincast.scheduling.sharing.step_times import StepTimes
from traincast.scheduling.study import SETUP, regrets, run_study

THERE = SharedCluster.uniform(2, 4)
LONG = queue(*((at, 1 + at % 4, 10 + 37 * at % 91) for at in range(20)))
QUEUE = queue((0, 4, 100), (0, 4, 80), (1, 2, 50), (2, 8, 30), (3, 1, 70), (4, 1, 5), (5, 3, 20), (5, 2, 45))


class Backwards:
    """An engine that hands everything over as bytes, and has workers that finish in the opposite order."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, setup: str, payload: Any, tasks: Sequence[Any], *, done: Callable[[int, Any], None]) -> None:
        """Run all tasks, each by one of the workers."""
        made = import_callable(setup, "setup", role="function")
        crew = [made(pickle.loads(pickle.dumps(payload))) for _ in range(self.workers)]
        for index in reversed(range(len(tasks))):
            task = pickle.loads(pickle.dumps(tasks[index]))
            done(index, pickle.loads(pickle.dumps(crew[index % self.workers](task))))


def test_rows_are_all_combinations_in_the_order_of_the_arguments() -> None:
    rows = run_study(
        QUEUE, THERE, policies=["sjf", "fifo"], placements=["pooled", "spread"], loads=[1, 2], seeds=[0, 1]
    )
    assert len(rows) == 16
    assert [row.case.policy for row in rows] == ["sjf"] * 8 + ["fifo"] * 8
    assert rows[0].case == ("sjf", "pooled", "exact", 1.0, 0)
    assert rows[0].metrics == measure(simulate(QUEUE, THERE, policy="sjf"))
    assert rows[0].to_dict()["mean_jct_s"] == rows[0].metrics.mean_jct_s


@pytest.mark.parametrize("workers", [1, 3])
def test_a_study_does_not_depend_on_engine_and_workers(workers: int) -> None:
    settings: dict[str, Any] = {
        "policies": ["sjf", "srtf", "easy"],
        "placements": ["consolidated", "random"],
        "estimates": ["exact", "noisy:1.0"],
        "seeds": range(3),
        "loads": [1.0, 1.5],
        "failures": Failures(laws=(FailureLaw(kind="node", mtbf_s=300, repair_s=10),)),
    }
    told: list[tuple[int, int]] = []
    here = run_study(QUEUE, THERE, **settings, progress=lambda *numbers: told.append(numbers))
    there = run_study(QUEUE, THERE, **settings, engine=Backwards(workers))
    assert here == there
    assert told[-1] == (len(here), len(here))


def test_a_study_is_the_same_on_processes() -> None:
    engines = pytest.importorskip("traincast.engines")
    settings: dict[str, Any] = {"policies": ["sjf", "srtf"], "estimates": ["exact", "noisy:1.0"], "seeds": range(2)}
    here = run_study(LONG, THERE, **settings)
    for workers in (1, 2):
        assert run_study(LONG, THERE, **settings, engine=engines.load_engine("local", workers=workers)) == here


def test_where_nothing_is_drawn_one_run_stands_for_all_seeds() -> None:
    told: list[int] = []
    rows = run_study(
        LONG,
        THERE,
        policies=["sjf"],
        estimates=["exact", "noisy:1.0"],
        seeds=range(4),
        progress=lambda _, total: told.append(total),
    )
    assert told == [5] * 5
    assert len({row.metrics.mean_jct_s for row in rows[:4]}) == 1
    assert len({row.metrics.mean_jct_s for row in rows[4:]}) > 1


def test_load_divides_the_times_between_submissions() -> None:
    alone = [
        Job(job_id="a", submit_s=10, num_gpus=8, duration_s=60),
        Job(job_id="b", submit_s=110, num_gpus=8, duration_s=60, deadline_s=175),
    ]
    usual, fast = run_study(alone, THERE, policies=["fifo"], loads=[1, 2])
    assert usual.metrics.makespan_s == 160
    assert usual.metrics.mean_queue_s == 0
    assert fast.metrics.makespan_s == 120
    assert fast.metrics.mean_queue_s == 5
    assert (usual.metrics.deadlines_met, fast.metrics.deadlines_met) == (1, 0)


def test_regret_is_the_loss_against_exact_estimates() -> None:
    jobs = queue((0, 8, 100), (1, 8, 10), (1, 8, 50))
    wrong = Given({"a": 100.0, "b": 60.0, "c": 50.0})
    rows = run_study(
        jobs, THERE, policies=["sjf", "fifo"], estimates=["exact", "predicted"], beliefs={"predicted": wrong}
    )
    found = {(one.policy, one.estimates): one for one in regrets(rows)}
    assert found["sjf", "exact"].loss == 0
    assert found["sjf", "predicted"].mean_jct_s == pytest.approx((100 + 159 + 149) / 3)
    assert found["sjf", "predicted"].loss == pytest.approx((100 + 159 + 149) / (100 + 109 + 159) - 1)
    assert found["sjf", "predicted"].queue_loss == pytest.approx((99 + 149) / (99 + 109) - 1)
    assert found["fifo", "predicted"].loss == 0


def test_where_nothing_waits_there_is_no_loss_of_queueing() -> None:
    only = regrets(run_study(queue((0, 1, 10)), THERE, policies=["sjf"]))[0]
    assert math.isnan(only.queue_loss)
    assert only.loss == 0


def test_regret_over_seeds_has_its_spread() -> None:
    found = regrets(run_study(LONG, THERE, policies=["sjf"], estimates=["exact", "noisy:1.0"], seeds=range(5)))[1]
    assert found.low <= found.loss <= found.high
    assert found.low < found.high


def test_regret_needs_runs_with_exact_estimates() -> None:
    with pytest.raises(RequestError, match="no run of sjf with exact estimates"):
        regrets(run_study(QUEUE, THERE, policies=["sjf"], estimates=["noisy:1.0"]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policies": []}, "0 cases"),
        ({"policies": ["sjff"]}, "unknown policy 'sjff'"),
        ({"placements": ["pool"]}, "unknown placement 'pool'"),
        ({"estimates": ["predicted"]}, "give them in beliefs"),
        ({"estimates": ["noisy"]}, "expected noisy:SIGMA"),
        ({"loads": [0]}, "load 0: expected a number above 0"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_anything_runs(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        run_study(QUEUE, THERE, **{"policies": ["sjf"], **settings})


def test_forecast_speeds_are_ready_before_workers_begin(tmp_path: Path) -> None:
    there = cluster("2x4:V100")
    steps = StepTimes(there)
    asked = log(tmp_path, f'a,0,4,"{MLP}",512,1000', f'b,0,2,"{MLP}",512,500')
    jobs = forecast_durations(asked, there, steps=steps).jobs
    settings: dict[str, Any] = {"policies": ["fifo"], "placements": ["consolidated", "spread"]}
    here = run_study(jobs, there, speeds=ForecastSpeeds(steps), **settings)
    count = steps.num_forecasts
    there_too = run_study(jobs, there, speeds=ForecastSpeeds(steps), engine=Backwards(2), **settings)
    assert here == there_too
    assert steps.num_forecasts == count
    assert here[0].metrics.mean_jct_s < here[1].metrics.mean_jct_s


def test_the_setup_of_workers_can_be_imported() -> None:
    assert import_callable(SETUP, "setup", role="function").__name__ == "worker"
