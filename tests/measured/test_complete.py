"""Rows are completed by other rows of their source, and only by those that agree."""

from __future__ import annotations

from traincast.measured.models.language import graph_of
from traincast.measured.table import FROM_OTHERS, completed
from traincast.tables import Row


def test_heads_come_from_rows_of_the_same_source_and_width() -> None:
    rows: list[Row] = [
        {"source": "a", "hidden": 240, "heads": 6},
        {"source": "a", "hidden": 240, "heads": None},
        {"source": "b", "hidden": 240, "heads": None},
        {"source": "a", "hidden": 480, "heads": 6},
        {"source": "a", "hidden": 480, "heads": 8},
        {"source": "a", "hidden": 480, "heads": None},
        {"source": "a", "hidden": None, "heads": None},
    ]
    made = completed(rows)
    assert [row["heads"] for row in made] == [6, 6, None, 6, 8, None, None]
    assert [row.get(FROM_OTHERS) for row in made] == [None, "heads", None, None, None, None, None]


def test_a_completed_row_says_so() -> None:
    rows: list[Row] = [
        {"model": "gpt", "n_layers": 2, "hidden": 240, "heads": heads, "vocab": 100, "seq": 16} for heads in (6, None)
    ]
    assumed: list[str] = []
    graph_of(completed(rows)[1], assumed)
    assert "heads not stated: 6, as in other rows of this width" in assumed


def test_a_table_without_heads_stays_as_it_is() -> None:
    assert completed([{"source": "a", "hidden": 240}]) == [{"source": "a", "hidden": 240}]
