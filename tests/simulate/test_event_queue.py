"""The event engine: shared resources and arrivals by hand, its laws, and the executor where nothing is dynamic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import SimulationError
from traincast.simulate import event_queue
from traincast.simulate.event_queue import Uses, execute_queue
from traincast.simulate.executor import execute
from traincast.strategy.costs import ragged

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tasks:
    """Tasks in a line each: seconds, lanes, predecessors, and (resource, weight) pairs."""

    durations: list[float]
    lanes: list[list[int]]
    waits: list[list[int]]
    num_lanes: int
    uses: list[list[tuple[int, float]]] | None = None
    capacity: list[float] | None = None
    release: list[float] | None = None
    by_arrival: list[bool] | None = None
    fair: list[bool] | None = None

    def run(self) -> tuple[list[float], list[float]]:
        lane_start, lanes = ragged(self.lanes)
        predecessor_start, predecessors = ragged(self.waits)
        start, end = execute_queue(
            np.array(self.durations, dtype=np.float64),
            lane_start=lane_start,
            lanes=lanes,
            predecessor_start=predecessor_start,
            predecessors=predecessors,
            num_lanes=self.num_lanes,
            uses=self._uses(),
            release=None if self.release is None else np.array(self.release),
            by_arrival=None if self.by_arrival is None else np.array(self.by_arrival),
        )
        return start.tolist(), end.tolist()

    def _uses(self) -> Uses | None:
        if self.uses is None:
            return None
        start, resource = ragged([[r for r, _ in parts] for parts in self.uses])
        weight = np.array([w for parts in self.uses for _, w in parts], dtype=np.float64)
        capacity = np.array(self.capacity, dtype=np.float64)
        fair = None if self.fair is None else np.array(self.fair)
        return Uses(start=start, resource=resource, weight=weight, capacity=capacity, fair=fair)

    def by_executor(self) -> tuple[list[float], list[float]]:
        lane_start, lanes = ragged(self.lanes)
        predecessor_start, predecessors = ragged(self.waits)
        start, end = execute(
            np.array(self.durations, dtype=np.float64),
            lane_start=lane_start,
            lanes=lanes,
            predecessor_start=predecessor_start,
            predecessors=predecessors,
            num_lanes=self.num_lanes,
        )
        return start.tolist(), end.tolist()


def sharing(durations: list[float], capacity: float = 1.0, release: list[float] | None = None) -> list[float]:
    """When independent tasks of weight 1 on one resource end."""
    size = len(durations)
    tasks = Tasks(durations, [[]] * size, [[]] * size, 0, [[(0, 1.0)]] * size, [capacity], release)
    return tasks.run()[1]


@st.composite
def plans(draw: st.DrawFn, most: int = 20) -> Tasks:
    size, num_lanes = draw(st.integers(1, most)), draw(st.integers(1, 4))
    durations = draw(st.lists(st.floats(0, 100), min_size=size, max_size=size))
    lanes = [draw(st.lists(st.integers(0, num_lanes - 1), max_size=3)) for _ in range(size)]
    waits = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(size)]
    return Tasks(durations, lanes, waits, num_lanes)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(plan=plans())
def test_where_nothing_is_dynamic_it_is_the_executor_to_the_last_digit(plan: Tasks) -> None:
    assert plan.run() == plan.by_executor()


@st.composite
def dynamic_plans(draw: st.DrawFn) -> Tasks:
    plan = draw(plans(most=10))
    size, resources = len(plan.durations), draw(st.integers(1, 3))
    use = st.tuples(st.integers(0, resources - 1), st.floats(0, 2))
    return Tasks(
        plan.durations,
        plan.lanes,
        plan.waits,
        plan.num_lanes,
        [draw(st.lists(use, max_size=2, unique_by=lambda pair: pair[0])) for _ in range(size)],
        draw(st.lists(st.floats(0.1, 2), min_size=resources, max_size=resources)),
        draw(st.lists(st.floats(0, 50), min_size=size, max_size=size)),
        draw(st.lists(st.booleans(), min_size=plan.num_lanes, max_size=plan.num_lanes)),
    )


@settings(deadline=None, derandomize=True, max_examples=100)
@given(plan=dynamic_plans())
def test_waits_lanes_and_releases_are_kept_and_none_is_faster_than_alone(plan: Tasks) -> None:
    start, end = plan.run()
    assert plan.release is not None
    for task, duration in enumerate(plan.durations):
        assert start[task] >= plan.release[task]
        assert end[task] - start[task] >= duration * (1 - 1e-9) - 1e-9
        assert all(end[w] <= start[task] for w in plan.waits[task])
    for lane in range(plan.num_lanes):
        held = sorted((start[t], end[t]) for t in range(len(start)) if lane in plan.lanes[t])
        assert all(a[1] <= b[0] for a, b in pairwise(held))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(plan=dynamic_plans())
def test_an_overloaded_resource_does_its_work_at_full_rate_and_no_faster(plan: Tasks) -> None:
    """Work conserved: within the whole run no resource carries more than its capacity times the time."""
    start, end = plan.run()
    assert plan.uses is not None
    assert plan.capacity is not None
    span = max(end) - min(start)
    for resource, capacity in enumerate(plan.capacity):
        held = [(plan.durations[t] * w, w) for t, uses in enumerate(plan.uses) for r, w in uses if r == resource]
        work = sum(amount for amount, _ in held)
        # A task of more weight than the capacity is slowed even alone, so that it too keeps to the rate.
        assert work <= capacity * span * (1 + 1e-9) + 1e-6


def test_a_task_alone_runs_at_full_speed() -> None:
    assert sharing([3.0]) == [3.0]


@pytest.mark.parametrize("count", [2, 3, 10])
def test_equal_tasks_on_one_resource_take_as_many_times_as_long(count: int) -> None:
    assert sharing([2.0] * count) == [2.0 * count] * count


def test_the_shorter_leaves_and_the_longer_goes_on_at_full_speed() -> None:
    # Both at half speed until 2; the longer has 2 left, alone.
    assert sharing([1.0, 3.0]) == pytest.approx([2.0, 4.0])


def test_who_comes_later_slows_who_is_there() -> None:
    # One alone until 1, then halved: its last second takes two, to 3; the other has one done by then, one left.
    assert sharing([2.0, 2.0], release=[0.0, 1.0]) == pytest.approx([3.0, 4.0])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(durations=st.lists(st.floats(0.01, 10), min_size=1, max_size=12))
def test_sharing_conserves_work(durations: list[float]) -> None:
    """Until a task ends, every other has had as much of the resource as it, or all it needed."""
    wanted = [sum(min(mine, other) for other in durations) for mine in durations]
    assert sharing(durations) == pytest.approx(wanted)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    durations=st.lists(st.floats(0.01, 10), min_size=1, max_size=10),
    capacity=st.floats(0.5, 8),
    more=st.floats(1, 4),
    seed=st.integers(0, 1000),
)
def test_more_capacity_never_delays_independent_tasks(
    durations: list[float], capacity: float, more: float, seed: int
) -> None:
    release = np.random.default_rng(seed).uniform(0, 5, len(durations)).tolist()
    before, after = sharing(durations, capacity, release), sharing(durations, capacity * more, release)
    assert all(a <= b * (1 + 1e-12) for a, b in zip(after, before, strict=True))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(plan=dynamic_plans(), factor=st.sampled_from([1e-6, 2.0**-20, 1e3]))
def test_time_has_no_unit(plan: Tasks, factor: float) -> None:
    """Of independent arrivals the order may hang on a last digit, so only lanes in program order are scaled."""
    assert plan.release is not None
    fixed = Tasks(plan.durations, plan.lanes, plan.waits, plan.num_lanes, plan.uses, plan.capacity, plan.release)
    scaled = Tasks(
        [d * factor for d in plan.durations],
        plan.lanes,
        plan.waits,
        plan.num_lanes,
        plan.uses,
        plan.capacity,
        [r * factor for r in plan.release],
    )
    wanted = [time * factor for time in fixed.run()[1]]
    assert scaled.run()[1] == pytest.approx(wanted, rel=1e-9, abs=1e-12 * factor)


def test_a_weight_beside_a_full_load_slows_both() -> None:
    # Weight 0.25 beside weight 1: both take 1.25 times as long, until the first is done.
    tasks = Tasks([4.0, 1.0], [[0], [1]], [[], []], 2, [[(0, 1.0)], [(0, 0.25)]], [1.0])
    assert tasks.run()[1] == pytest.approx([4.25, 1.25])


def test_a_task_goes_at_the_pace_of_its_slowest_resource() -> None:
    # Task 0 is on both; resource 1 has three tasks, resource 0 two.
    uses = [[(0, 1.0), (1, 1.0)], [(0, 1.0)], [(1, 1.0)], [(1, 1.0)]]
    tasks = Tasks([1.0, 1.0, 1.0, 1.0], [[]] * 4, [[]] * 4, 0, uses, [1.0, 1.0])
    assert tasks.run()[1] == pytest.approx([3.0, 2.0, 3.0, 3.0])


def fair_link(durations: list[float], weights: list[float]) -> Tasks:
    """Independent tasks on one fair resource of capacity 1."""
    count = len(durations)
    return Tasks(
        durations, [[n] for n in range(count)], [[]] * count, count, uses=[[(0, w)] for w in weights], capacity=[1.0],
        fair=[True],
    )  # fmt: skip


def test_a_fair_resource_does_not_slow_tasks_that_need_less_than_their_part() -> None:
    """Weights 1, 1, 1 and 0.2 on a capacity of 1: the last has its 0.2, the others 0.8 / 3 each."""
    assert fair_link([1.0, 1.0, 1.0, 5.0], [1.0, 1.0, 1.0, 0.2]).run()[1] == pytest.approx([3.75, 3.75, 3.75, 5.0])


def test_a_fair_resource_shares_what_the_small_leave_again_and_again() -> None:
    """Weights 0.1, 0.3, 1, 1: levels 0.25, then 0.3 for the second, then 0.3 for the last two."""
    ends = fair_link([1.0] * 4, [0.1, 0.3, 1.0, 1.0]).run()[1]
    # 0.1 + 0.3 + 0.3 + 0.3 = 1 until t = 1; then the last two have 0.5 each for what is left, 0.7.
    assert ends == pytest.approx([1.0, 1.0, 1.0 + 0.7 / 0.5, 1.0 + 0.7 / 0.5])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    durations=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    weights=st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6),
)
def test_fair_sharing_is_within_its_bounds_and_never_hurts_the_smallest_weight(
    durations: list[float], weights: list[float]
) -> None:
    own = weights[: len(durations)]
    tasks = fair_link(durations, own)
    ends, proportional = tasks.run()[1], replace(tasks, fair=[False]).run()[1]
    work = sum(d * w for d, w in zip(durations, own, strict=True))
    assert max(ends) >= max(*durations, work) * (1 - 1e-9)
    assert all(end >= duration * (1 - 1e-9) for end, duration in zip(ends, durations, strict=True))
    smallest = own.index(min(own))
    assert ends[smallest] <= proportional[smallest] * (1 + 1e-9)


def test_equal_weights_share_a_fair_resource_as_any_other_to_the_last_digit() -> None:
    tasks = fair_link([0.7, 1.9, 0.3, 1.1, 2.3], [0.3] * 5)
    assert tasks.run() == replace(tasks, fair=[False]).run()


def test_capacity_for_all_slows_none() -> None:
    assert sharing([1.0, 2.0, 3.0], capacity=3.0) == [1.0, 2.0, 3.0]


def test_nothing_starts_before_its_release() -> None:
    tasks = Tasks([1.0, 1.0], [[0], [0]], [[], []], 1, release=[2.0, 0.0])
    assert tasks.run() == ([2.0, 3.0], [3.0, 4.0])


def test_a_lane_by_arrival_serves_who_comes_first() -> None:
    tasks = Tasks([1.0, 1.0, 1.0], [[0]] * 3, [[]] * 3, 1, release=[2.5, 0.5, 1.0], by_arrival=[True])
    assert tasks.run()[0] == [2.5, 0.5, 1.5]


def test_arrivals_at_one_instant_are_served_by_number() -> None:
    # Task 1 is there at once; task 0 only after a chain that takes no time, yet at the same instant.
    tasks = Tasks([1.0, 1.0, 0.0, 0.0], [[0], [0], [], []], [[2], [], [3], []], 1, by_arrival=[True])
    assert tasks.run()[0][:2] == [0.0, 1.0]


def test_a_task_by_arrival_holds_all_its_lanes() -> None:
    # Task 1 waits for lane 0, and so holds its place on lane 1 before task 2.
    tasks = Tasks([4.0, 1.0, 1.0], [[0], [0, 1], [1]], [[]] * 3, 2, release=[0.0, 1.0, 2.0], by_arrival=[True, True])
    assert tasks.run()[0] == [0.0, 4.0, 5.0]


def test_predecessors_need_not_come_first() -> None:
    assert Tasks([1.0, 2.0], [[0], [1]], [[1], []], 2).run() == ([2.0, 0.0], [3.0, 2.0])


def test_nothing_at_all_is_an_input_too() -> None:
    assert Tasks([], [], [], 0).run() == ([], [])


def test_a_circle_of_waits_is_named() -> None:
    with pytest.raises(SimulationError, match=r"2 of 3 tasks never start.*task 1 waits for 2 waits for 1"):
        Tasks([1.0, 1.0, 1.0], [[0], [1], [2]], [[], [2], [1]], 3).run()


def test_a_task_that_waits_for_who_stands_behind_it_is_named() -> None:
    with pytest.raises(SimulationError, match="task 0 waits for 1 waits for 0"):
        Tasks([1.0, 1.0], [[0], [0]], [[1], []], 1).run()


def test_by_arrival_the_same_tasks_are_no_circle() -> None:
    assert Tasks([1.0, 1.0], [[0], [0]], [[1], []], 1, by_arrival=[True]).run()[0] == [1.0, 0.0]


def test_a_circle_on_lanes_by_arrival_is_named() -> None:
    with pytest.raises(SimulationError, match="2 of 2 tasks never start"):
        Tasks([1.0, 1.0], [[0], [0]], [[1], [0]], 1, by_arrival=[True]).run()


@pytest.mark.parametrize(
    ("tasks", "line"),
    [
        (Tasks([-1.0], [[]], [[]], 0), "duration 0 is -1.0"),
        (Tasks([float("nan")], [[]], [[]], 0), "duration 0 is nan"),
        (Tasks([1.0], [[1]], [[]], 1), "lane numbers go from 1 to 1: expected numbers from 0 to below 1"),
        (Tasks([1.0], [[]], [[1]], 1), "predecessor numbers go from 1 to 1: expected numbers from 0 to below 1"),
        (Tasks([1.0], [[]], [[]], 0, [[(0, 1.0)]], [0.0]), "capacity of resource 0 is 0.0"),
    ],
)
def test_what_cannot_run_is_refused(tasks: Tasks, line: str) -> None:
    with pytest.raises(SimulationError, match=line):
        tasks.run()


def random_plan(size: int, seed: int) -> Tasks:
    random = np.random.default_rng(seed)
    return Tasks(
        random.exponential(1.0, size).tolist(),
        [random.choice(8, size=random.integers(0, 3), replace=False).tolist() for _ in range(size)],
        [random.integers(max(0, i - 20), i, size=2).tolist() if i else [] for i in range(size)],
        8,
        [[(int(r), 1.0) for r in random.choice(5, size=random.integers(0, 3), replace=False)] for _ in range(size)],
        [1.0, 1.0, 2.0, 2.0, 3.0],
        random.uniform(0, 10, size).tolist(),
        [False] * 6 + [True] * 2,
    )


def test_the_compiled_form_agrees_with_the_plain_one_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, fair = random_plan(500, seed=7), fair_link([0.7, 1.9, 0.3, 1.1, 2.3], [0.1, 0.9, 0.5, 1.0, 0.2])
    plain, fairly = plan.run(), fair.run()
    monkeypatch.setattr(event_queue.run_compiled, "pays_from", 1)
    assert plan.run() == plain
    assert fair.run() == fairly
    assert Tasks([], [], [], 0).run() == ([], [])
