"""Measured runs, read from tables: each row becomes a request by its own columns.

What a row does not state is chosen as `predict` would choose it, or as its framework does by default, and each choice
is a sentence in ``assumed``. A row that cannot be read raises :class:`~traincast.tables.RowError` with the reason.
"""

from traincast.measured.run import Measured, Reading, assumption_kind, count_assumptions, source_of

__all__ = ["Measured", "Reading", "assumption_kind", "count_assumptions", "source_of"]
