"""The distance between a request and a measured run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.evidence.samples import GPT, run_of
from traincast.evidence import Runs, Traits, distance, distances
from traincast.evidence.distance import FACTS, FARTHEST, RATIOS, terms

CHANGES: list[tuple[dict[str, Any], float]] = [
    ({}, 0.0),
    ({"devices": 128, "nodes": 16}, RATIOS["devices"]),
    ({"active_parameters": 4e9}, RATIOS["active_parameters"]),
    ({"micro_batch": 4}, 2 * RATIOS["micro batch"]),
    ({"tokens": 8192}, RATIOS["tokens"] + RATIOS["micro batch"]),
    ({"power_w": 350.0}, RATIOS["power_w"]),
    ({"device": "h200-sxm", "power_w": 350.0}, FACTS["device"]),
    ({"kind": "experts"}, FACTS["kind"]),
    ({"zero": 1}, FACTS["zero=3"]),
    ({"zero": 1, "offload": "optimizer"}, FACTS["zero=3"] + FACTS["offload"]),
    ({"tp": 16, "tensor_nodes": 2}, FACTS["tp"] + FACTS["tp across nodes"]),
    ({"devices": 64 * 2**20}, FARTHEST * RATIOS["devices"]),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES, ids=[str(changes) for changes, _ in CHANGES])
def test_each_difference_adds_its_weight(changes: dict[str, Any], expected: float) -> None:
    assert distance(GPT, run_of(**changes)) == pytest.approx(expected)


def some_traits() -> st.SearchStrategy[Traits]:
    return st.builds(
        lambda devices, parameters, tokens, zero, kind, power: replace(
            GPT, devices=devices, active_parameters=parameters, tokens=tokens, zero=zero, kind=kind, power_w=power
        ),
        st.integers(1, 4096),
        st.floats(1e6, 1e12),
        st.integers(0, 65536),
        st.sampled_from([0, 1, 2, 3]),
        st.sampled_from(["language", "experts", "images", "other", "tuned"]),
        st.floats(100.0, 1000.0),
    )


@given(one=some_traits(), other=some_traits())
def test_it_is_symmetric_and_zero_for_the_same(one: Traits, other: Traits) -> None:
    there, back = (distance(here, replace(run_of(), traits=run)) for here, run in ((one, other), (other, one)))
    assert there == pytest.approx(back)
    assert there >= 0.0
    assert distance(one, replace(run_of(), traits=one)) == 0.0


def test_every_term_has_a_weight_and_every_weight_a_term() -> None:
    runs = Runs.of([run_of()])
    assert set(terms(GPT, runs)) == RATIOS.keys() | FACTS.keys()
    assert distances(GPT, runs).tolist() == [0.0]


def test_many_runs_have_the_distances_of_each() -> None:
    runs = [run_of(**changes) for changes, _ in CHANGES]
    np.testing.assert_allclose(distances(GPT, Runs.of(runs)), [distance(GPT, run) for run in runs])
