from __future__ import annotations

from typing import Any

import pytest

from traincast.validating.failures import failed_otherwise
from traincast.validating.outcome import RowOutcome, Validation

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


def test_the_summary_says_how_right_fits_is_with_and_without_such_failures() -> None:
    def outcome(index: int, *, ran: bool, fits: bool, otherwise: bool = False) -> RowOutcome:
        return RowOutcome(
            index=index, source="mine", measured=None, ran=ran, fits=fits, failed_otherwise=otherwise,
            measured_memory=10.0 if ran else None, memory_low=9.0, memory_high=10.0 + index - 1,
        )  # fmt: skip

    rows = (
        outcome(0, ran=True, fits=True),
        outcome(1, ran=True, fits=True),
        outcome(2, ran=True, fits=False),
        outcome(3, ran=False, fits=True, otherwise=True),
        outcome(4, ran=False, fits=False),
    )
    figures = Validation(rows=rows, with_memory=True).summary()["mine"]
    assert figures["oom_f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert figures["fits_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert figures["fits_failed"] == pytest.approx(1 / 3)
    assert figures["failed_otherwise"] == 1
    assert figures["memory_failures"]["fits_failed"] == 0.0
    assert figures["memory_failures"]["oom_f1"] == pytest.approx(2 / 3)
    assert figures["memory_coverage_90"] == pytest.approx(2 / 3)  # the first lies above its interval
