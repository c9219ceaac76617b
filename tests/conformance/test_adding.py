"""A technique that is entered in its dict, and nowhere else, works in forecasts, searches, reports and exports.

A published source is one file as well: tables are read, and rows asked, by what it says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LLAMA, check_timeline, request_of
from tests.searching.problems import finite, problem_for, single, solved, strategies_of, with_strategy
from traincast import (
    AnalyticalCostModel,
    Forecast,
    Job,
    Operator,
    Policy,
    SharedCluster,
    Strategy,
    StrategyError,
    search,
    validate,
)
from traincast.engines import local_engine
from traincast.errors import FileFormatError
from traincast.export import FRAMEWORKS, export
from traincast.forecast import forecast
from traincast.graph import OpKind
from traincast.measured import dialect
from traincast.scheduling import POLICIES, State, simulate
from traincast.scheduling.conformance import check_policy
from traincast.strategy import SCHEDULES, Slot
from traincast.strategy.memory.remedy import changes
from traincast.strategy.program.recompute import RECOMPUTATIONS, Recomputation, leaner
from traincast.strategy.schedules import Order, Pass, PipelineSchedule

CHEAP = frozenset({OpKind.ACTIVATION, OpKind.LAYER_NORM, OpKind.ELEMENTWISE})


def last_in_first_out(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """GPipe whose backwards come in the reverse order, each in two halves."""
    slots = [Slot(Pass.FORWARD, m) for m in range(microbatches)]
    for m in reversed(range(microbatches)):
        slots += [Slot(Pass.INPUT, m), Slot(Pass.WEIGHT, m)]
    return [slots for _ in range(stages)]


class Largest(Policy):
    """The job that needs most GPUs starts first."""

    def decide(self, state: State) -> None:
        """Start what fits, by size."""
        for run in sorted(state.waiting.values(), key=lambda run: -run.num_gpus):
            state.start(run)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enter a toy of each kind for the time of a test; the recomputation stands where its memory puts it."""
    monkeypatch.setitem(SCHEDULES, "lifo", PipelineSchedule(order=last_in_first_out, splits_backward=True))
    monkeypatch.setitem(POLICIES, "largest", Largest)
    before = dict(RECOMPUTATIONS)
    RECOMPUTATIONS.clear()
    RECOMPUTATIONS.update(
        {"none": before["none"], "selective": before["selective"], "cheap": Recomputation(kinds=CHEAP), **before}
    )
    yield
    RECOMPUTATIONS.clear()
    RECOMPUTATIONS.update(before)


def made(strategy: str) -> Forecast:
    return forecast(request_of(strategy, model=LLAMA, runtime="megatron", global_batch=16))


def test_a_schedule_is_forecast() -> None:
    toy, gpipe = (made(f"pp=4,num_microbatches=8,schedule={name}") for name in ("lifo", "gpipe"))
    check_timeline(toy.timeline)
    assert "schedule=lifo" in toy.report.strategy
    assert toy.report.to_dict()["bubble_s"] > 0.0
    assert toy.report.peak_memory_bytes >= gpipe.report.peak_memory_bytes  # neither drops anything before all forwards


@pytest.mark.long(but=1)
@pytest.mark.parametrize("toy", ["schedule=lifo,recompute=none,pp=4", "recompute=cheap,schedule=1f1b,pp<=2"])
def test_a_search_forecasts_a_technique_as_it_would_be_alone(toy: str) -> None:
    problem = problem_for(LLAMA, 8, 16, constraint=f"{toy},offload=none,cp=1,tp<=2,cut=even,zero<=1")
    columns = finite(solved(problem))
    assert len(columns) > 3
    for row, strategy in enumerate(strategies_of(problem, columns)):
        assert "lifo" in str(strategy) or "cheap" in str(strategy)
        seconds, nbytes = single(with_strategy(problem, strategy), problem.cost_model)
        assert columns.seconds[row] == pytest.approx(seconds, rel=1e-6)
        assert columns.memory[row] == pytest.approx(nbytes, rel=1e-6)


def test_a_recomputation_trades_memory_for_time() -> None:
    none, cheap, full = (made(f"dp=1,recompute={name}") for name in ("none", "cheap", "full"))
    held = [each.report.memory.activations for each in (none, cheap, full)]
    assert held[0] > held[1] > held[2]
    assert none.report.step_s < cheap.report.step_s < full.report.step_s
    items = [item for program in cheap.lowered.prepared.programs for item in program.backward]
    again = {item.work.kind for item in items if item.label.endswith("(again)") and isinstance(item.work, Operator)}
    assert again and again <= CHEAP
    flops = [sum(p.flops for p in each.lowered.prepared.programs) for each in (none, cheap, full)]
    assert flops[0] < flops[1] < flops[2]


@pytest.mark.long(guard="test_a_search_forecasts_a_technique_as_it_would_be_alone")
def test_a_recomputation_is_searched_and_proposed() -> None:
    answer = search(
        LLAMA,
        cluster="dgx-a100:1",
        global_batch=16,
        constraint="recompute=cheap,schedule=lifo,pp=4,offload=none,cp=1,tp=1",
        engine=local_engine(1),
        cost_model=AnalyticalCostModel(),
        use_cache=True,
    )
    assert (answer.best.strategy.recompute, answer.best.strategy.schedule) == ("cheap", "lifo")
    assert answer.best.report.fits
    assert leaner("none") == ["selective", "cheap", "full"]
    proposed = [change.description for change in changes(Strategy(dp=4), global_batch=16)]
    assert proposed.index("recompute=cheap") < proposed.index("recompute=full")


@pytest.mark.parametrize("strategy", ["pp=4,num_microbatches=8,schedule=lifo", "dp=4,zero=1,recompute=cheap"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_refuses_what_its_exporter_does_not_name(framework: str, strategy: str) -> None:
    with pytest.raises(StrategyError, match=r"lifo|cheap"):
        export(request_of(strategy, model=LLAMA, runtime=framework, global_batch=16), framework)


SOURCE = """
[columns]
source = "lab"
gpu_model = "card"
n_gpus = "cards"
step_time_s = "took (s)"
batch_per_gpu = "images"
[words.source]
"Acme.*" = "acme"
[words.precision]
"sixteen" = "amp_bf16"
[[facts]]
when = { source = "acme" }
state = { gpus_per_node = 8, framework = "PyTorch", container = 24.05 }
[networks.same]
squarenet = "resnet50"
[[networks.variations]]
family = "resnet"
said = { columns = "task", words = "small images" }
set = { resolution = 128 }
[recipes]
recipes = [{ dataset = "tinyimages", frozen = true }]
"""
TABLE = """lab,model,task,card,cards,precision,images,took (s),notes
Acme Labs,SquareNet,ImageNet,H100,8,sixteen,64,0.05,
Acme Labs,SquareNet,"ImageNet, small images",H100,8,sixteen,64,0.02,from TinyImages
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shipped dialects with one file more, and a table that its source published."""
    folder, table = tmp_path / "dialects", tmp_path / "published.csv"
    shutil.copytree(str(dialect.shipped()), folder)
    (folder / "acme.toml").write_text(SOURCE)
    table.write_text(TABLE)
    caches = (dialect._merged, dialect._topic, dialect.shipped_dialect)
    with monkeypatch.context() as patched:
        patched.setattr(dialect, "shipped", lambda: folder)
        for cached in caches:
            cached.cache_clear()
        yield table
    for cached in caches:
        cached.cache_clear()


def test_a_published_source_is_one_file(source: Path) -> None:
    found = validate(source, kind="dp-steps").to_dict()["rows"]
    assert [(row["status"], row["source"]) for row in found] == [("ok", "acme"), ("ok", "acme")]
    assert found[1]["predicted"] < found[0]["predicted"]  # images of 128 instead of 224 pixels
    assert "the script of this dataset trains the head only" in found[1]["assumed"]
    assert "GPUs per node not stated" not in " ".join(found[0]["assumed"])


def test_without_its_file_a_source_is_not_read(source: Path) -> None:
    (source.parent / "dialects" / "acme.toml").unlink()
    with pytest.raises(FileFormatError, match="lacks the columns gpu_model, n_gpus, batch_per_gpu"):
        validate(source, kind="dp-steps")


def test_a_policy_is_found_by_name() -> None:
    check_policy(Largest())
    jobs = [Job(job_id=str(n), submit_s=0.0, num_gpus=n, duration_s=10.0) for n in (3, 8)]
    outcome = simulate(jobs, SharedCluster.uniform(1, 8), policy="largest")
    assert [fate.end_s for fate in outcome.fates] == [20.0, 10.0]
