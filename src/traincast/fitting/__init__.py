"""Fit models to measurements: tables, splits, training, and bundles."""
