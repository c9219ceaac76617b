"""Calibration: a few parameters that datasheets do not give, fitted to a cluster's own runs, with their uncertainty."""
