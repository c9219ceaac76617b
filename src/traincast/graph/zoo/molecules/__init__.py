"""Networks on molecules."""
