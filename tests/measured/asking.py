"""The request that a row becomes, for tests that look at nothing else."""

from __future__ import annotations

from traincast.cluster import Cluster
from traincast.measured import dp_steps, steps
from traincast.strategy import Request
from traincast.tables import Row


def steps_request(row: Row, *, cluster: Cluster | None = None) -> Request:
    """Return the request of a row of language-model steps."""
    return steps.read_row(row, cluster=cluster).request


def dp_request(row: Row) -> Request:
    """Return the request of a row of data-parallel steps."""
    return dp_steps.read_row(row).request
