"""Every cost model passes the same suite: finite, ordered, deterministic, independent of company, growing with work."""

from __future__ import annotations

import numpy as np
import pytest

from traincast import (
    AnalyticalCostModel,
    CostModel,
    LearnedCostModel,
    Operator,
    TensorSpec,
    learned_cost_model,
    load_cluster,
)
from traincast.estimate import SOURCES
from traincast.graph import DType, OpKind, Phase
from traincast.work import Collective, Launch, Transfer, Work

MODELS: dict[str, CostModel] = {
    "analytical": AnalyticalCostModel(),
    "learned": learned_cost_model(),
    "learned from nothing": LearnedCostModel(),
}
CLUSTERS = ("dgx-h100:2", "dgx-a100:2", "dgx-b200:2", "dgx-gb200:2", "pcie-l40s", "pcie-a40-nvlink:2")


def tensor(*shape: int, dtype: DType = DType.BF16) -> TensorSpec:
    return TensorSpec(shape, dtype)


def product(m: int, n: int, k: int, dtype: DType = DType.BF16) -> Operator:
    return Operator(
        name="mm",
        kind=OpKind.GEMM,
        phase=Phase.FORWARD,
        inputs=(tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)),
        outputs=(tensor(m, n, dtype=dtype),),
    )


def attention(batch: int, seq: int) -> Operator:
    q, kv = tensor(batch, 32, seq, 128), tensor(batch, 8, seq, 128)
    return Operator(
        name="attention",
        kind=OpKind.ATTENTION,
        phase=Phase.FORWARD,
        inputs=(q, kv, kv),
        outputs=(q,),
        attributes={"causal": True},
    )


WORKS: tuple[Work, ...] = (
    product(4096, 4096, 4096),
    product(1, 1, 1),
    product(1 << 22, 1 << 18, 1 << 16),
    product(4096, 4096, 4096, DType.FP8),
    product(4096, 4096, 4096, DType.FP32),
    attention(2, 8192),
    attention(1, 1),
    Operator(
        name="gelu",
        kind=OpKind.ACTIVATION,
        phase=Phase.FORWARD,
        inputs=(tensor(4096, 4096),),
        outputs=(tensor(4096, 4096),),
    ),
    Collective(kind="all_reduce", nbytes=2.0**26, num_ranks=8),
    Collective(kind="all_gather", nbytes=1.0, num_ranks=2),
    Collective(kind="all_to_all", nbytes=2.0**40, num_ranks=16, num_nodes=2),
    Collective(kind="broadcast", nbytes=2.0**20, num_ranks=4),
    Transfer(nbytes=2.0**20, crosses_nodes=True),
    Launch(kernels=3.0),
)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_finite_ordered_and_the_same_every_time(model: CostModel, cluster: str) -> None:
    place = load_cluster(cluster)
    found, again = model.estimate(WORKS, place), model.estimate(WORKS, place)
    for column in (found.seconds, found.low, found.high):
        assert np.isfinite(column).all()
        assert (column >= 0).all()
    assert (found.low <= found.seconds).all()
    assert (found.seconds <= found.high).all()
    assert ((found.source >= 0) & (found.source < len(SOURCES))).all()
    assert (found.seconds == again.seconds).all()
    assert found.warnings == again.warnings == tuple(dict.fromkeys(found.warnings))


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_a_work_takes_as_long_in_company_as_alone(model: CostModel) -> None:
    place = load_cluster("dgx-h100:2")
    together = model.estimate(WORKS, place).seconds
    alone = [model.estimate([work], place).seconds[0] for work in WORKS]
    assert together == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_beyond_all_measurements_more_work_takes_longer(model: CostModel, cluster: str) -> None:
    place = load_cluster(cluster)
    for series in (
        [product(1 << i, 8192, 8192) for i in range(17, 24)],
        [product(8192, 1 << i, 8192) for i in range(17, 24)],
        [product(8192, 8192, 1 << i) for i in range(17, 24)],
        [attention(1, 1 << i) for i in range(18, 22)],
        [Collective(kind="all_reduce", nbytes=2.0**i, num_ranks=8) for i in range(33, 40)],
    ):
        assert (np.diff(model.estimate(series, place).seconds) > 0).all()


def test_nothing_is_estimated_for_nothing() -> None:
    for model in MODELS.values():
        assert len(model.estimate([], load_cluster("dgx-h100")).seconds) == 0
