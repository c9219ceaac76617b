from __future__ import annotations

from typing import Any

import pytest

from traincast.measured.table import failed_otherwise

RUN: dict[str, Any] = {
    "source": "mine", "framework": "nanotron", "gpu": "H100", "precision": "bf16", "recompute": "none", "n_layers": 16,
    "hidden": 2048, "ffn": 8192, "vocab": 1000, "seq": 4096, "dp": 4, "tp": 2, "pp": 2, "zero": 1, "micro_batch": 2,
    "grad_accum": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("ran", "otherwise"),
    [
        ({}, True),  # the same, twice
        ({"n_layers": 32, "hidden": 4096}, True),
        ({"micro_batch": 4}, True),
        ({"tp": 1}, True),
        ({"zero": 0, "dp": 64}, True),
        ({"grad_accum": 2}, True),  # no more are in flight than there are stages
        ({"dp": 8}, False),  # shares optimizer states among more
        ({"tp": 4}, False),
        ({"pp": 4}, False),
        ({"micro_batch": 1}, False),
        ({"grad_accum": 1}, False),
        ({"n_layers": 8}, False),
        ({"hidden": None}, False),
        ({"precision": "fp8"}, False),
        ({"source": "theirs"}, False),
    ],
)
def test_a_failure_is_not_of_memory_where_a_run_that_needs_no_less_ran(ran: dict[str, Any], otherwise: bool) -> None:
    assert failed_otherwise([RUN, {**RUN, **ran}], [False, True]) == [otherwise, False]


def test_a_failed_run_shows_nothing_of_another() -> None:
    assert failed_otherwise([RUN, RUN], [False, False]) == [False, False]
