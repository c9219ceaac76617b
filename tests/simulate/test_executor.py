"""The executor: small plans worked out by hand, and both of its forms alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.simulate import executor

Floats = npt.NDArray[np.float64]


def run(
    durations: list[float], lanes: list[list[int]], waits: list[list[int]], num_lanes: int
) -> tuple[list[float], list[float]]:
    def starts(parts: list[list[int]]) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *map(len, parts)]).astype(np.int64)

    def flat(parts: list[list[int]]) -> npt.NDArray[np.int64]:
        return np.array([v for p in parts for v in p], dtype=np.int64)

    start, end = executor.execute(
        np.array(durations, dtype=np.float64),
        lane_start=starts(lanes),
        lanes=flat(lanes),
        predecessor_start=starts(waits),
        predecessors=flat(waits),
        num_lanes=num_lanes,
    )
    return start.tolist(), end.tolist()


def test_a_lane_is_first_in_first_out() -> None:
    assert run([1.0, 2.0, 3.0], [[0], [0], [0]], [[], [], []], 1) == ([0.0, 1.0, 3.0], [1.0, 3.0, 6.0])


def test_lanes_run_side_by_side() -> None:
    assert run([1.0, 2.0], [[0], [1]], [[], []], 2) == ([0.0, 0.0], [1.0, 2.0])


def test_a_task_waits_for_all_before_it() -> None:
    start, end = run([1.0, 4.0, 1.0], [[0], [1], [2]], [[], [], [0, 1]], 3)
    assert (start[2], end[2]) == (4.0, 5.0)


def test_a_task_holds_all_its_lanes() -> None:
    start, _ = run([3.0, 2.0, 1.0, 1.0], [[0], [0, 1], [0], [1]], [[], [], [], []], 2)
    assert start == [0.0, 3.0, 5.0, 5.0]


def test_a_later_task_does_not_overtake_on_a_lane_that_waits() -> None:
    # Task 1 waits for task 0 on another lane; task 2, though ready, stands behind it.
    start, _ = run([5.0, 1.0, 1.0], [[0], [1], [1]], [[], [0], []], 2)
    assert start == [0.0, 5.0, 6.0]


def test_tasks_may_take_no_time_and_no_lane() -> None:
    assert run([0.0, 0.0], [[0], []], [[], [0]], 1) == ([0.0, 0.0], [0.0, 0.0])


def test_nothing_at_all_is_a_plan_too() -> None:
    assert run([], [], [], 0) == ([], [])


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[float], list[list[int]], list[list[int]], int]:
    size, num_lanes = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    durations = draw(st.lists(st.floats(0, 100), min_size=size, max_size=size))
    lanes = [draw(st.lists(st.integers(0, num_lanes - 1), max_size=2, unique=True)) for _ in range(size)]
    waits = [draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else [] for i in range(size)]
    return durations, lanes, waits, num_lanes


@settings(deadline=None, derandomize=True, max_examples=100)
@given(plan=plans())
def test_every_task_starts_as_soon_as_it_can_and_no_sooner(
    plan: tuple[list[float], list[list[int]], list[list[int]], int],
) -> None:
    durations, lanes, waits, _ = plan
    start, end = run(*plan)
    for task in range(len(durations)):
        before = [end[w] for w in waits[task]]
        before += [end[t] for t in range(task) if set(lanes[t]) & set(lanes[task])]
        assert start[task] == max(before, default=0.0)
        assert end[task] == start[task] + durations[task]


def test_the_compiled_form_agrees_with_the_plain_one_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    size = 500
    durations = random.exponential(1.0, size).tolist()
    lanes = [random.choice(8, size=random.integers(0, 3), replace=False).tolist() for _ in range(size)]
    waits = [random.integers(0, i, size=2).tolist() if i else [] for i in range(size)]
    plain = run(durations, lanes, waits, 8)
    monkeypatch.setattr(executor.execute_compiled, "pays_from", 1)
    assert run(durations, lanes, waits, 8) == plain
