"""How wrong we are: forecasts against measured runs."""

from traincast.validating.dp_steps import validate_dp_steps
from traincast.validating.outcome import RowOutcome, Validation
from traincast.validating.steps import validate_steps

__all__ = ["RowOutcome", "Validation", "validate_dp_steps", "validate_steps"]
