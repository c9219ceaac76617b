"""What to measure next: doubts, prices and commands."""

from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner

from tests.conftest import AnalyticalCostModel
from traincast import Advice, StrategyError, next_measurements
from traincast.cli.main import app
from traincast.engines import local_engine

MODEL = "gpt:layers=4,hidden=1024,heads=8,vocab=2000,seq=512"


@cache
def about(strategy: str | None = None) -> Advice:
    return next_measurements(
        MODEL,
        cluster="dgx-a100:4",
        global_batch=64,
        strategy=strategy,
        constraint="offload=none,recompute=none,cp=1,tp<=2,pp=1",
        cost_model=AnalyticalCostModel(),
        engine=local_engine(1),
    )


@pytest.mark.parametrize("strategy", [None, "dp=16,tp=2"])
def test_no_measurement_adds_doubt_and_the_best_per_dollar_comes_first(strategy: str | None) -> None:
    advice = about(strategy)
    assert advice.about == ("choice" if strategy is None else "time")
    assert {m.kind for m in advice.measurements} == {"operators", "collectives", "events", "run"}
    for measurement in advice.measurements:
        assert 0.0 <= measurement.doubt_after <= measurement.doubt_before == advice.doubt
        assert measurement.cost > 0.0
    worth = [m.lowered / m.cost for m in advice.measurements]
    assert worth == sorted(worth, reverse=True)


def test_a_run_of_the_strategy_on_all_nodes_leaves_the_least() -> None:
    advice = about("dp=16,tp=2")
    runs = {m.num_nodes: m for m in advice.measurements if m.kind == "run"}
    assert sorted(runs) == [1, 2, 4]
    left = [runs[nodes].doubt_after for nodes in sorted(runs)]
    assert left == sorted(left, reverse=True)
    assert [runs[n].cost for n in sorted(runs)] == sorted(runs[n].cost for n in runs)
    assert min(m.doubt_after for m in advice.measurements) == left[-1]


def test_the_doubt_about_a_time_is_that_of_its_interval() -> None:
    advice = about("dp=16,tp=2")
    assert advice.low_s < advice.step_s < advice.high_s
    assert advice.doubt < advice.high_s / advice.low_s - 1.0
    assert advice.compared == 1


def test_commands_make_each_measurement_and_use_it() -> None:
    by_kind = {m.kind: m.commands for m in about("dp=16,tp=2").measurements}
    assert by_kind["operators"][0].startswith("traincast profile operators --from ")
    assert "profile collectives --backend nccl" in by_kind["collectives"][0]
    assert "--nnodes 2 --nproc-per-node 8 -m traincast profile events" in by_kind["events"][0]
    assert by_kind["events"][-1].endswith("--events events")
    assert by_kind["run"][-1] == "traincast calibrate runs.csv --cluster dgx-a100 -o mine.toml"


def test_a_strategy_that_is_not_legal_is_refused() -> None:
    with pytest.raises(StrategyError):
        about("dp=5")


def test_the_verb_prints_a_table_or_json() -> None:
    words = ["next", MODEL, "--cluster", "dgx-a100:2", "--global-batch", "32", "--strategy", "dp=16"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "what to measure next" in shown.output
    assert "traincast" in shown.output
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["about"] == "time"
    assert {"kind", "what", "cost", "doubt_before", "doubt_after", "commands"} <= set(told["measurements"][0])
