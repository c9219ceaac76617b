"""Error figures of a table, by source."""

from __future__ import annotations

import pytest

from traincast import RowValidation
from traincast.validating.outcome import RowOutcome


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
    figures = RowValidation(rows=rows, with_memory=True).summary()["mine"]
    assert figures["oom_f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert figures["fits_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert figures["fits_failed"] == pytest.approx(1 / 3)
    assert figures["failed_otherwise"] == 1
    assert figures["memory_failures"]["fits_failed"] == 0.0
    assert figures["memory_failures"]["oom_f1"] == pytest.approx(2 / 3)
    assert figures["memory_coverage_90"] == pytest.approx(2 / 3)  # the first lies above its interval
