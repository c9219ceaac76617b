"""The study of fine-tuning sources chooses habits by the other sources only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from benchmarks.finetune import NEUTRAL, Habits, Judge, Ratios, choose, errors, factors


class Made(Judge):
    """Two sources whose times are 8 % longer than forecast unless padding is counted; a third shows its start only."""

    def __init__(self) -> None:
        self.sources = ["a", "b", "c"]
        self.rows = [{"source": name} for name in self.sources]
        self.kind = ["plain", "plain", "plain"]

    def of(self, source: str) -> list[int]:
        return [self.sources.index(source)]

    def matters(self, rows: Sequence[int], habit: str) -> bool:
        return (habit == "padded" and rows != [2]) or (habit == "start_s" and rows == [2])

    def ratios(self, rows: Sequence[int], habits: Habits) -> list[Ratios]:
        return [(1.08 / habits.padded if row < 2 else 1.2 / (1 + habits.start_s / 10), None) for row in rows]


def test_a_habit_is_chosen_by_the_sources_that_show_it() -> None:
    assert choose(Made(), without="a").padded == 1.08
    assert choose(Made(), without="a").start_s == 2.0


def test_a_habit_that_no_other_source_shows_stays_neutral() -> None:
    assert choose(Made(), without="c").start_s == NEUTRAL.start_s


def test_a_factor_is_the_typical_ratio_of_the_others() -> None:
    time, memory = factors(Made(), NEUTRAL, without="c", kind="plain")
    assert time == pytest.approx(1.08)
    assert memory == 1.0


def test_the_table_has_a_line_for_each_source_and_one_for_all() -> None:
    made = Made()
    text = errors(made, {source: choose(made, without=source) for source in made.sources})
    assert [line.split(" | ")[0].strip("|* ") for line in text.splitlines()[2:]] == ["a", "b", "c", "all"]
    assert "| c | 1 | 16.7 % | 16.7 % | 16.7 % | 0.0 % |" in text.replace("**", "")
