"""Verbs that read or make real runs: validate, calibrate, trace and testbed."""
