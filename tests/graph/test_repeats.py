"""Repeated blocks are found where they are equal, and only there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from traincast.graph.capture.repeats import Repeat, find_runs, folded


def fold(module: nn.Module) -> list[Repeat]:
    """What folding finds; the module is whole again afterwards."""
    with folded(module) as repeats:
        return repeats


@pytest.mark.parametrize(
    ("signatures", "runs"),
    [
        ("", []),
        ("abc", []),
        ("aab", []),
        ("aaa", [(0, 1, 3)]),
        ("abababc", [(0, 2, 3)]),
        ("abbbbb", [(1, 1, 5)]),
        ("xaaaayabcabcabcz", [(1, 1, 4), (6, 3, 3)]),
        ("aaabbb", [(0, 1, 3), (3, 1, 3)]),
    ],
)
def test_runs_are_found_with_their_period(signatures: str, runs: list[tuple[int, int, int]]) -> None:
    assert find_runs(signatures) == runs


@settings(deadline=None, derandomize=True, max_examples=200)
@given(text=st.text(alphabet="abc", max_size=24))
def test_runs_are_equal_groups_that_do_not_overlap(text: str) -> None:
    end = 0
    for start, period, count in find_runs(text):
        assert start >= end
        assert count >= 3
        group = text[start : start + period]
        assert text[start : start + period * count] == group * count
        end = start + period * count
    assert end <= len(text)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(count=st.integers(3, 100), period=st.integers(1, 8))
def test_a_pure_repetition_is_one_run(count: int, period: int) -> None:
    assert find_runs(list(range(period)) * count) == [(0, period, count)]


def test_equal_layers_are_cut_to_two_and_the_rest_is_counted() -> None:
    module = nn.Sequential(nn.Linear(2, 4), *(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 1))
    with folded(module) as (run,):
        assert (run.container, run.start, run.period, run.count) == ("", 1, 1, 6)
        assert run.scopes == (("1",), ("2",))
        assert list(module._modules) == ["0", "1", "2", "7"]
    assert list(module._modules) == [str(n) for n in range(8)]


def test_layers_that_differ_in_shape_setting_or_class_are_kept() -> None:
    for different in (nn.Linear(4, 4, bias=False), nn.Dropout(0.5), nn.Identity()):
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), different, nn.Linear(4, 4), nn.Linear(4, 4))
        assert fold(module) == []
        assert len(module) == 5
    unequal = nn.Sequential(*(nn.Dropout(p / 10) for p in range(5)))
    assert fold(unequal) == []


def test_the_same_module_used_several_times_is_not_a_repetition() -> None:
    shared = nn.Linear(4, 4)
    assert fold(nn.ModuleList([shared, shared, shared, shared])) == []


def test_runs_inside_other_modules_are_found_by_path() -> None:
    class Outer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
            self.second = nn.Sequential(nn.ModuleDict({"inner": nn.Sequential(*(nn.ReLU() for _ in range(3)))}))

    assert [(run.container, run.count) for run in fold(Outer())] == [("first", 4), ("second.0.inner", 3)]


def test_a_position_in_the_stack_is_no_difference() -> None:
    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self, index: int) -> None:
            super().__init__()
            self.layer_idx = index
            self.linear = nn.Linear(2, 2)

    (run,) = fold(nn.ModuleList(Layer(i) for i in range(5)))
    assert run.count == 5
