"""One vocabulary of operators: every name has one kind, and kinds have one meaning."""

from __future__ import annotations

import pytest

from traincast.graph import vocabulary
from traincast.graph.vocabulary import FREE, MATRIX_KINDS, POINTWISE, PRODUCTS, WRITES_ONLY, OpKind, kind_of


@pytest.mark.parametrize("table", [vocabulary._TORCH, vocabulary._JAX, vocabulary._RECORDED, vocabulary._MEASURED])
def test_no_name_has_two_kinds(table: dict[OpKind, str]) -> None:
    names = [name for text in table.values() for name in text.split()]
    assert len(names) == len(set(names))


def test_what_costs_nothing_has_no_kind() -> None:
    assert not any(kind_of(name) for name in FREE)
    assert not any(kind_of(name, source="jax") for name in vocabulary.JAX_VIEWS)


def test_what_only_writes_runs_a_kernel() -> None:
    assert {kind_of(name) for name in WRITES_ONLY} == {OpKind.COPY, OpKind.DROPOUT}


def test_a_name_has_one_kind_in_all_sources_but_for_the_clamp_that_runs_a_relu() -> None:
    sources = [vocabulary._KINDS[source] for source in ("torch", "jax", "trace", "table")]
    names = {name for known in sources for name in known}
    unlike = {name for name in names if len({known[name] for known in sources if name in known}) > 1}
    assert unlike == {"clamp_min", "clamp_min_"}


def test_gradients_are_of_the_kind_of_what_they_differentiate() -> None:
    known = vocabulary._KINDS["torch"]
    pairs = {name: name.removesuffix("_backward") for name in known if name.endswith("_backward")}
    unlike = {name for name, forward in pairs.items() if forward in known and known[forward] is not known[name]}
    assert unlike == set()


def test_formulas_are_those_of_kinds_that_have_one() -> None:
    assert {kind.formula for kind in MATRIX_KINDS} <= MATRIX_KINDS
    assert all(kind.formula is kind for kind in set(OpKind) - PRODUCTS)
    assert not POINTWISE & MATRIX_KINDS
