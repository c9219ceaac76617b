"""``profile events``: the works of a plan, their times in whole steps, and runs that are resumed or extended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincast import Operator, RequestError
from traincast.estimate.events.file import CARD, read_card, read_rows
from traincast.estimate.events.keys import operator_key
from traincast.estimate.events.model import read_events
from traincast.graph import OpKind
from traincast.journal import Journal
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.measure import journal_of, measure_events, plan_events
from traincast.profiling.events.network import trimmed
from traincast.profiling.events.request import messages_of, needed_works
from traincast.profiling.events.steps import OperatorWatch, StepTimer, TimedSteps, TrainingStep, training_step
from traincast.profiling.timing import quiet
from traincast.strategy import lower

DEEP = "gpt:layers=4,hidden=16,heads=2,vocab=32,seq=8"
ONE = EventsAsk(model=DEEP, cluster="cpu-server:1x1", strategy="dp=1,mbs=1", global_batch=1)
EMULATED = EventsAsk(
    model=DEEP,
    cluster="dgx-h100:4x1",
    strategy="dp=4,mbs=1",
    global_batch=4,
    runtime="gloo",
    compute="h100-sxm5-80gb",
    repeats=5,
)


def time_steps(step: TrainingStep, wanted: Sequence[Operator], **how: Any) -> TimedSteps:
    """Three turns of a step."""
    timer = StepTimer(step, wanted, **how)
    timer.run(steps=3, seconds=5.0)
    return timer.result()


def counts_of(request: EventsAsk) -> dict[str, float]:
    """How often a step of the plan runs each operator, by key."""
    plan = lower(needed_works(request).request, grain="operator").plan
    counts: dict[str, float] = {}
    for work, count in zip(plan.works, plan.work_counts().tolist(), strict=True):
        if isinstance(work, Operator) and work.kind is not OpKind.OPTIMIZER:
            counts[operator_key(work)] = counts.get(operator_key(work), 0.0) + count
    return counts


def test_operators_of_a_plan_add_up_to_the_mean_step() -> None:
    needed = needed_works(ONE)
    times = time_steps(training_step(DEEP, batch=1), needed.operators)
    total = sum(times.operators[key][1] * count for key, count in counts_of(ONE).items())
    assert total == pytest.approx(times.mean_s - times.update_s, rel=1e-6)
    assert [op.kind for op in times.missing] == [OpKind.OPTIMIZER]
    assert times.parameter_bytes == 4.0 * needed.graph.num_parameters


def test_two_layers_stand_for_all() -> None:
    step = training_step(DEEP, batch=1, fold=True)
    watch = OperatorWatch(step.repeats, step.module)
    step(watch)
    found: dict[str, float] = {}
    for op, weight in zip(watch.operators, watch.weights, strict=True):
        if op is not None:
            found[operator_key(op)] = found.get(operator_key(op), 0.0) + weight
    counts = counts_of(ONE)
    assert {key: found[key] for key in counts} == counts


def test_whole_operators_that_a_plan_divides_do_not_count_for_others() -> None:
    needed = needed_works(ONE)
    wanted = [op for op in needed.operators if op.name == "native_layer_norm"]
    step = training_step(DEEP, batch=1)
    some = time_steps(step, wanted, whole=False)
    all_of_them = time_steps(step, wanted)
    (_, own), (_, with_others) = (next(iter(times.operators.values())) for times in (some, all_of_them))
    assert 0.0 < own < 0.8 * with_others


def test_messages_are_measured_among_two_ranks_at_the_sizes_that_their_law_needs() -> None:
    needed = needed_works(EMULATED)
    sizes = {4 * op.num_ranks * round(op.nbytes / op.num_ranks / 4) // 2 for op in needed.collectives}
    found = messages_of(needed, world=2)
    assert {m.collective for m in found} == {"all_reduce"}
    assert {(m.num_ranks, m.num_nodes) for m in found} == {(2, 2)}
    assert sizes <= {m.nbytes for m in found}
    assert [m.nbytes for m in found] == sorted(m.nbytes for m in found)
    with pytest.raises(RequestError, match="measure with two processes or more"):
        messages_of(needed, world=1)


def test_the_words_of_a_request_repeat_it() -> None:
    from click.testing import CliRunner

    from traincast.cli.derive import words_of
    from traincast.cli.profiling.profile import profile

    words = words_of(EMULATED)
    assert words[0] == DEEP
    said = CliRunner().invoke(profile, ["events", *words, "-o", "events", "--plan", "--json"], catch_exceptions=False)
    assert json.loads(said.stdout)["works"] == plan_events(EMULATED, "events").works


def never(arguments: Sequence[str], *, ranks: int) -> int:
    """A launcher that must not be called."""
    raise AssertionError("nothing was left to measure")


def test_emulated_events_are_measured_once_and_shared_by_strategies(tmp_path: Path) -> None:
    output = tmp_path / "events"
    first = measure_events(EMULATED, output)
    assert (first.known, first.measured, first.processes) == (0, first.works, 2)
    again = measure_events(EMULATED, output, launcher=never)
    assert (again.known, again.measured, again.processes) == (first.works, 0, 0)
    rows = read_rows(output)
    assert {row["source"] for row in rows if row["kind"] == "operator"} == {"emulated"}
    assert {row["source"] for row in rows if row["kind"] == "collective"} == {"measured"}
    assert read_card(output).compute == "h100-sxm5-80gb"
    two = replace(EMULATED, cluster="dgx-h100:2x1", strategy="dp=2,mbs=1", global_batch=2)
    plan = plan_events(two, output)
    assert not plan.operators
    with pytest.raises(RequestError, match="has events with threads 1, not 2"):
        plan_events(replace(EMULATED, threads=2), output)
    assert read_events(output).interference == 0.0


@pytest.mark.long(guard="profiling/test_operators.py::test_a_killed_run_goes_on_where_it_stopped")
def test_a_killed_run_resumes_from_its_journal(tmp_path: Path) -> None:
    output = tmp_path / "events"
    measure_events(EMULATED, output)
    kept = [{**row, "mean_s": 123.0, "low_s": 123.0, "high_s": 123.0} for row in read_rows(output) if row["collective"]]
    (output / CARD).unlink()
    for file in output.iterdir():
        file.unlink()
    output.rmdir()
    with Journal(journal_of(output), kind="measured events", key="measured events", sync=False) as journal:
        for row in kept:
            journal.keep(row["key"], [row])
    plan = plan_events(EMULATED, output)
    assert not plan.messages
    assert plan.known == len(kept)
    resumed = measure_events(EMULATED, output)
    assert resumed.known == len(kept)
    assert [row["mean_s"] for row in read_rows(output) if row["collective"]] == [123.0] * len(kept)
    assert not journal_of(output).exists()


def test_a_folder_of_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RequestError, match="is a folder of other files"):
        measure_events(ONE, tmp_path, launcher=never)
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_launcher_that_fails_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="1 processes that measure events failed with exit code 7"):
        measure_events(ONE, tmp_path / "events", launcher=lambda arguments, *, ranks: 7)


def test_samples_that_waited_for_a_core_are_thrown_away() -> None:
    assert quiet([(1.0, 0.0), (1.1, 0.1), (1.0, 0.01), (3.0, 2.0)]) == [(1.0, 0.0), (1.0, 0.01)]
    assert quiet([(2.0, 1.0), (4.0, 3.0)]) == [(2.0, 1.0)]
    assert quiet([]) == []


def test_the_mean_of_a_message_leaves_out_a_fifth_at_each_end() -> None:
    mean, error = trimmed([*range(1, 20), 1000.0])
    assert mean == pytest.approx(10.5)
    assert error == pytest.approx((sum((x - 10.5) ** 2 for x in range(5, 17)) / 11 / 12) ** 0.5)


def test_ranks_that_wait_for_one_another_take_the_steps_of_the_slowest() -> None:
    given: list[list[float]] = []

    def slowest(seconds: list[float]) -> list[float]:
        given.append(seconds)
        return [10.0] * len(seconds)

    times = time_steps(training_step(DEEP, batch=1), needed_works(ONE).operators, slowest=slowest)
    assert times.mean_s == pytest.approx(10.0)
    assert [len(values) for values in given] == [3, 3]  # shares of waiting, then seconds


def test_steps_that_any_rank_spent_waiting_are_left_out() -> None:
    answers = iter([[0.0, 0.3, 0.01], [10.0, 99.0, 20.0]])
    times = time_steps(training_step(DEEP, batch=1), needed_works(ONE).operators, slowest=lambda values: next(answers))
    assert times.plain_s == (10.0, 20.0)
