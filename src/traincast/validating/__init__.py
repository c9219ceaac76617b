"""Error figures: forecasts compared with tables of measurements."""

from traincast.validating.outcome import RowOutcome, Validation

__all__ = ["RowOutcome", "Validation"]
