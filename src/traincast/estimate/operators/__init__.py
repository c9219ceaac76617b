"""Seconds of operators: a roofline with measured efficiencies, and what was learned from measurements."""
