"""Verbs that forecast a step and find the best strategies: predict and search."""
