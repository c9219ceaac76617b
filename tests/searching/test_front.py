"""The Pareto front against trying all pairs, and what each axis decides."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.searching.problems import DEEP, exhausted
from traincast.searching.ranking import influence, pareto_rows
from traincast.searching.space import AXES


@settings(deadline=None, derandomize=True, max_examples=150)
@given(rows=st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=0, max_size=40), columns=st.integers(1, 3))
def test_the_front_is_all_that_nothing_else_beats(rows: list[tuple[int, ...]], columns: int) -> None:
    values = np.array(rows, dtype=np.float64).reshape(-1, 3)[:, :columns]
    beaten = [
        any((other <= row).all() and ((other < row).any() or n < m) for n, other in enumerate(values) if n != m)
        for m, row in enumerate(values)
    ]
    found = pareto_rows(values)
    assert sorted(found.tolist()) == [n for n, lost in enumerate(beaten) if not lost]
    assert (np.diff(values[found, 0]) >= 0).all()


def test_influence_has_the_best_of_every_value_of_every_axis() -> None:
    _, columns = exhausted((DEEP, 8, 16, "offload=none|optimizer,tp>1"))
    found = influence(columns, columns.seconds)
    assert set(found) <= set(AXES)
    assert {"tp", "pp", "schedule", "zero", "recompute", "cut", "offload", "micro_batch"} <= set(found)
    assert "ep" not in found
    for name, values in found.items():
        assert min(values.values()) == columns.seconds.min()
        mine = [str(columns.value(name, row)) for row in range(len(columns))]
        for value, least in values.items():
            rows = [row for row, own in enumerate(mine) if own == value]
            assert least == columns.seconds[rows].min()
    assert [int(value) for value in found["tp"]] == [2, 4]  # four heads are not shared out over eight
