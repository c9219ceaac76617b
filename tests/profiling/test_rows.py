"""A row says all of an operator, and an operator comes back from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import CNN, GPT, graph_of
from traincast import FileFormatError, Operator, TensorSpec
from traincast.estimate.events.keys import PHASES, operator_key
from traincast.graph import DType, OpKind, Phase
from traincast.profiling.rows import (
    COLLECTIVE_COLUMNS,
    OPERATOR_COLUMNS,
    canonical,
    operator_from_row,
    operator_of,
    params_of,
    row_of,
)
from traincast.profiling.timing import SUSPECT_DISPERSION, Timing

QUIET = Timing(median_s=2e-6, min_s=1e-6, dispersion=0.1, count=7)
GEMM = Operator(
    name="addmm",
    kind=OpKind.GEMM,
    phase=Phase.FORWARD,
    scope="layers.0",
    inputs=(TensorSpec((8, 16), batch_dim=0), TensorSpec((16, 32)), TensorSpec((32,))),
    outputs=(TensorSpec((8, 32), batch_dim=0),),
    parameters=(TensorSpec((16, 32)),),
    saved=(TensorSpec((8, 16), batch_dim=0),),
    attributes={"module": "Linear"},
)

scalars = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
tensors = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.sampled_from(DType),
    st.none(),
)
operators = st.builds(
    Operator,
    name=st.text(min_size=1, max_size=12),
    kind=st.sampled_from([OpKind.ELEMENTWISE, OpKind.COPY, OpKind.REDUCTION, OpKind.OPTIMIZER]),
    phase=st.sampled_from(Phase),
    scope=st.text(max_size=5),
    inputs=st.lists(tensors, min_size=1, max_size=4).map(tuple),
    outputs=st.lists(tensors, min_size=1, max_size=3).map(tuple),
    parameters=st.lists(tensors, max_size=2).map(tuple),
    attributes=st.dictionaries(st.text(max_size=6), scalars, max_size=3),
)


def row(operator: Operator, timing: Timing = QUIET) -> dict[str, object]:
    return row_of(operator, timing=timing, source="s", device="d", framework="f", context="alone", model="m")


@given(operators)
def test_any_operator_comes_back_from_its_row(operator: Operator) -> None:
    assert operator_from_row(row(operator)) == canonical(operator)
    assert params_of(operator_from_row(row(operator))) == params_of(operator)


@pytest.mark.parametrize("model", [GPT, CNN])
def test_every_captured_operator_comes_back_with_the_same_cost(model: str) -> None:
    for captured in graph_of(model).operators:
        operator = captured.with_batch(4)
        again = operator_of(operator.kind.value, PHASES[operator.phase], operator.dtype.value, params_of(operator))
        assert again == canonical(operator)
        assert (again.flops, again.nbytes) == (operator.flops, operator.nbytes)
        assert operator_key(again) == operator_key(operator)


def test_a_row_has_exactly_the_columns_of_the_table() -> None:
    made = row(GEMM)
    assert list(made) == list(OPERATOR_COLUMNS)
    published = "source device dtype op phase b m n k params time_us time_us_min n_meas framework split tflops suspect"
    assert list(OPERATOR_COLUMNS) == [*published.split(), "dispersion", "context", "model"]
    collective = (
        "source system device collective bytes n_ranks n_nodes ranks_per_node interconnect library dtype variant stat "
        "time_us busbw_GBps suspect"
    )
    assert list(COLLECTIVE_COLUMNS) == [
        *collective.split(), "dispersion", "n_meas", "time_us_min", "beside_compute", "concurrent_groups", "node_set",
    ]  # fmt: skip


def test_a_row_has_the_dims_the_rate_and_the_spread_of_a_product() -> None:
    made = row(GEMM)
    assert [made[c] for c in "bmnk"] == [1, 8, 32, 16]
    assert (made["op"], made["phase"], made["dtype"]) == ("gemm", "fwd", "fp32")
    assert made["time_us"] == pytest.approx(2.0)
    assert made["time_us_min"] == pytest.approx(1.0)
    assert made["tflops"] == pytest.approx(2 * 8 * 32 * 16 / 2e-6 / 1e12)
    assert (made["n_meas"], made["dispersion"], made["suspect"]) == (7, 0.1, False)
    assert row(GEMM, replace(QUIET, dispersion=SUSPECT_DISPERSION + 0.01))["suspect"] is True


def test_a_row_of_another_kind_has_no_product_dims() -> None:
    relu = replace(GEMM, name="relu", kind=OpKind.ACTIVATION, inputs=GEMM.outputs, parameters=())
    assert [row(relu)[c] for c in "bmnk"] == [None] * 4


def test_the_key_leaves_out_where_an_operator_stood_and_keeps_what_it_costs() -> None:
    moved = replace(GEMM, scope="elsewhere", saved=(), attributes={"module": "Head"})
    assert operator_key(moved) == operator_key(GEMM)
    assert operator_key(replace(GEMM, attributes={"stride": 2})) != operator_key(GEMM)
    assert operator_key(replace(GEMM, name="mm")) != operator_key(GEMM)
    assert operator_key(replace(GEMM, phase=Phase.BACKWARD)) != operator_key(GEMM)
    half = tuple(t.with_dtype(DType.BF16) for t in GEMM.inputs)
    assert operator_key(replace(GEMM, inputs=half)) != operator_key(GEMM)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "warp"}, "warp"),
        ({"phase": "sideways"}, "sideways"),
        ({"dtype": "bf16"}, "bf16"),
        ({"params": "{"}, "does not describe a profiled operator"),
        ({"params": json.dumps({"name": "mm"})}, "inputs"),
        ({"params": json.dumps({"name": "mm", "inputs": [[[-1], "fp32"]], "outputs": [], "attributes": {}})}, "-1"),
        ({"params": 7}, "params"),
    ],
)
def test_a_row_that_is_no_operator_is_refused_with_what_is_wrong(change: dict[str, object], said: str) -> None:
    with pytest.raises(FileFormatError, match=said):
        operator_from_row({**row(GEMM), **change})
