"""A search of a model with embedding tables means the same step as a forecast, however replicas share the tables."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.conftest import AnalyticalCostModel
from tests.laws.test_tables import DLRM
from tests.searching.problems import all_families, request_for, solved
from tests.searching.test_contract import compare
from traincast import Strategy
from traincast.searching.explore import bulk_of
from traincast.searching.problem import Problem
from traincast.searching.space import usual_axes


def problem(tables: str) -> Problem:
    request = replace(request_for(DLRM, 8, 64, runtime="pytorch"), strategy=Strategy(tables=tables))  # type: ignore[arg-type]
    return Problem(
        request=request,
        axes=usual_axes(request),
        most_memory=request.cluster.device.memory_bytes,
        cost_model=AnalyticalCostModel(),
    )


@pytest.mark.long(but=2)
@pytest.mark.parametrize("tables", ["replicated", "sharded"])
@pytest.mark.parametrize("seed", range(3))
def test_seconds_and_memory_are_those_of_forecasts(tables: str, seed: int) -> None:
    assert compare(problem(tables), random.Random(seed)) > 0


def test_sharded_tables_leave_only_data_parallelism() -> None:
    found = solved(problem("sharded"))
    assert set(found.dp.tolist()) == {8}
    assert set(found.zero.tolist()) == {0, 1, 2}
    assert {family.degrees.tp for family in all_families(problem("replicated"))} > {1}


def test_the_lower_bound_of_a_family_counts_its_own_replicas() -> None:
    space = problem("replicated")
    families = [
        f for f in all_families(space) if f.micro_batch == 1 and f.degrees.tp == f.degrees.cp == 1 and f.keeps_all
    ]
    together = bulk_of(space).bounds(families)
    assert together.tolist() == [float(bulk_of(space).bounds([family])[0]) for family in families]
    assert len({family.dp for family in families}) > 1
