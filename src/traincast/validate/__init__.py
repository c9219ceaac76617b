"""How wrong we are: forecasts against measured runs."""

from traincast.validate.dp_steps import validate_dp_steps
from traincast.validate.outcome import Outcome, Validation
from traincast.validate.steps import validate_steps

__all__ = ["Outcome", "Validation", "validate_dp_steps", "validate_steps"]
