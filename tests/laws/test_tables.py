"""Embedding tables with sparse gradients: who holds them, which bytes replicas exchange, whose rows each updates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import traincast
from tests.conftest import CNN, GPT, check_timeline, graph_of, request_of, run, tasks_per_work
from tests.laws.test_exchange import Moved, moved
from traincast import Operator, OperatorGraph, Request, Strategy, StrategyError, UnknownNameError, capture, load_cluster
from traincast.export.shape import check_common
from traincast.forecast import forecast
from traincast.graph import OpKind
from traincast.strategy import choose_strategy, lower, parse_strategy

ROWS, FEATURES, WIDTH = 32_709_138, 26, 16
DLRM = f"dlrm:threshold=15,width={WIDTH},bottom=32x{WIDTH},top=64x32"
BATCH = 64
BAG_ROWS, BAG_WIDTH, BAG = 100_000, 64, 20
REPLICAS = [2, 4, 8]


class Bags(nn.Module):  # type: ignore[misc]
    """A bag of twenty ids per sample, summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(BAG_ROWS, BAG_WIDTH, mode="sum", sparse=True)
        self.out = nn.Linear(BAG_WIDTH, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids))


@cache
def bags() -> OperatorGraph:
    return capture(Bags(), torch.zeros(1, BAG, dtype=torch.int64))


def asked(strategy: str, *, graph: OperatorGraph | None = None, precision: str = "fp32") -> Request:
    request = request_of(strategy, model=DLRM, global_batch=BATCH, precision=precision)
    return replace(request, graph=graph) if graph else request


def exchanged(request: Request) -> Moved:
    """Bytes of the exchange of tables of one rank."""
    return {k: v for k, v in moved(lower(request, grain="operator").plan).items() if k[0] == "table"}


def operators(request: Request) -> dict[str, float]:
    """Bytes that the operators on tables move on one rank, by name."""
    found = tasks_per_work(lower(request, grain="operator").plan)
    return {w.name: w.nbytes * n for w, n in found if isinstance(w, Operator) and w.kind is OpKind.EMBEDDING}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("dp", REPLICAS)
def test_sharded_tables_send_each_vector_once_and_its_gradient_back(dp: int, microbatches: int) -> None:
    found = exchanged(asked(f"dp={dp},tables=sharded,num_microbatches={microbatches}"))
    assert found == {("table", "all_to_all"): 2 * (BATCH / dp) * FEATURES * WIDTH * 4}
    half = exchanged(asked(f"dp={dp},tables=sharded,num_microbatches={microbatches}", precision="bf16"))
    assert half["table", "all_to_all"] * 2 == found["table", "all_to_all"]


@pytest.mark.parametrize("dp", REPLICAS)
def test_bags_send_one_vector_per_bag_not_one_per_id(dp: int) -> None:
    found = exchanged(asked(f"dp={dp},tables=sharded", graph=bags()))
    assert found == {("table", "all_to_all"): 2 * (BATCH / dp) * BAG_WIDTH * 4}


@pytest.mark.parametrize("dp", REPLICAS)
def test_whole_tables_gather_the_rows_of_all_samples_with_their_numbers(dp: int) -> None:
    assert exchanged(asked(f"dp={dp}")) == {("table", "all_gather"): BATCH * FEATURES * (WIDTH * 4 + 8)}
    split = exchanged(asked(f"dp={dp},tp=2"))  # each rank of a tensor group has half of the rows
    assert split == {("table", "all_gather"): BATCH * FEATURES * (WIDTH * 4 + 8) / 2}
    assert exchanged(asked(f"dp={dp}", graph=bags())) == {("table", "all_gather"): BATCH * BAG * (BAG_WIDTH * 4 + 8)}


@pytest.mark.parametrize("graph", [None, bags()], ids=["dlrm", "bags"])
@pytest.mark.parametrize("dp", REPLICAS)
def test_a_replica_updates_the_rows_of_all_samples_or_its_share_of_them(dp: int, graph: OperatorGraph | None) -> None:
    update = "sparse_adamw" if graph else "table_lookup_backward"
    one = operators(asked("dp=1", graph=graph))
    whole, shared = (operators(asked(f"dp={dp}{more}", graph=graph)) for more in ("", ",tables=sharded"))
    assert whole[update] == one[update]
    assert shared == {name: nbytes / dp for name, nbytes in one.items()}
    names = {"table_lookup"} if graph is None else {"_embedding_bag", "_embedding_bag_backward"}
    assert one.keys() == names | {update}
    assert {k: v for k, v in whole.items() if k != update} == {k: v for k, v in shared.items() if k != update}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
@pytest.mark.parametrize("dp", REPLICAS)
def test_a_rank_holds_its_share_of_the_tables_and_of_their_states(dp: int, precision: str) -> None:
    whole, shared = (
        lower(asked(f"dp={dp}{more}", precision=precision)).memory[0].weights for more in ("", ",tables=sharded")
    )
    size = 2 if precision == "bf16" else 4
    assert whole - shared == pytest.approx(ROWS * WIDTH * size * (1 - 1 / dp), rel=1e-12)
    of_bags = [lower(asked(f"dp={dp}{more}", graph=bags())).memory[0].parts for more in ("", ",tables=sharded")]
    assert [parts["frozen weights"] for parts in of_bags] == [BAG_ROWS * BAG_WIDTH * 4, BAG_ROWS * BAG_WIDTH * 4 / dp]
    assert of_bags[0]["buffers"] == 2 * BAG_ROWS * BAG_WIDTH * 4  # Adam's two states
    assert of_bags[1]["buffers"] == of_bags[0]["buffers"] / dp


def test_a_lookup_reads_a_share_of_the_rows() -> None:
    for dp in REPLICAS:
        found = tasks_per_work(lower(asked(f"dp={dp},tables=sharded"), grain="operator").plan)
        (lookup,) = (w for w, _ in found if isinstance(w, Operator) and w.name == "table_lookup")
        assert lookup.inputs[0].shape == (-(-ROWS // dp), WIDTH)
        assert lookup.outputs[0].shape == (BATCH // dp, FEATURES, WIDTH)


def test_tables_that_do_not_fit_one_device_fit_eight() -> None:
    request = replace(
        request_of("dp=8", global_batch=65536, precision="tf32"), graph=capture("dlrm-large", use_cache=True)
    )
    shared = replace(request, strategy=replace(request.strategy, tables="sharded"))
    assert not forecast(request).report.fits
    assert str(choose_strategy(request)) == "dp=8,tables=sharded"
    assert forecast(shared).report.fits


def test_the_remedy_of_tables_that_do_not_fit_is_to_shard_them() -> None:
    result = traincast.predict(
        "dlrm-large", cluster="dgx-a100:1", strategy="dp=8,micro_batch=8192", global_batch=65536, precision="tf32"
    )
    assert "; fits with tables=sharded (" in result.report.warnings[0]


@pytest.mark.parametrize("graph", [None, bags()], ids=["dlrm", "bags"])
def test_one_replica_exchanges_nothing_either_way(graph: OperatorGraph | None) -> None:
    alone, shared = (run(asked(f"dp=1{more}", graph=graph)) for more in ("", ",tables=sharded"))
    assert alone[1].step_s == shared[1].step_s
    assert alone[0].memory == shared[0].memory
    assert exchanged(asked("dp=1,tables=sharded", graph=graph)) == {}


@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "fsdp", "tensorflow"])
@pytest.mark.parametrize(
    "strategy",
    ["dp=4", "dp=4,tables=sharded", "dp=8,zero=1,tables=sharded,num_microbatches=2", "dp=2,pp=2,num_microbatches=2"],
)
@pytest.mark.parametrize("graph", [None, bags()], ids=["dlrm", "bags"])
def test_grains_and_foldings_agree(graph: OperatorGraph | None, strategy: str, runtime: str) -> None:
    request = asked(strategy, graph=graph)
    request = replace(request, runtime=request_of(runtime=runtime).runtime)
    _, coarse = run(request)
    _, fine = run(request, grain="operator")
    assert coarse.step_s == pytest.approx(fine.step_s, rel=1e-9)
    for timeline, grain in ((coarse, "segment"), (fine, "operator")):
        _, expanded = run(request, grain=grain, all_ranks=True)
        assert expanded.step_s == timeline.step_s
        check_timeline(expanded)


def test_uneven_shares_and_unlike_nodes_exchange_whole_tables_as_well() -> None:
    even = asked("dp=4", graph=bags())
    uneven = replace(even, strategy=replace(even.strategy, shares=(2, 2, 3, 1)))
    assert forecast(uneven).report.step_s > forecast(even).report.step_s
    mixed = replace(asked("dp=16,tables=sharded"), cluster=load_cluster("dgx-a100:1+dgx-h100:1"))
    alike = replace(mixed, cluster=load_cluster("dgx-h100:2"))
    assert forecast(mixed).report.step_s > forecast(alike).report.step_s


@pytest.mark.parametrize("model", [GPT, CNN])
def test_models_without_tables_are_refused(model: str) -> None:
    with pytest.raises(StrategyError, match=r"^tables=sharded, but .* has no embedding tables with sparse gradients;"):
        lower(request_of("dp=2,tables=sharded", model=model))
    assert "table" not in {group for group, _ in moved(lower(request_of("dp=2", model=model), grain="operator").plan)}


@pytest.mark.parametrize(
    "more", ["tp=2", "pp=2", "cp=2", "dp=2,ep=2", "dp=2,zero=3", "dp=2,servers=1", "dp=2,shares=2:1"]
)
def test_other_ways_to_divide_are_refused_in_one_line(more: str) -> None:
    with pytest.raises(StrategyError, match=r"^tables=sharded with .*: tables are divided among equal") as refused:
        parse_strategy(f"{more},tables=sharded", global_batch=BATCH)
    assert "\n" not in str(refused.value)


def test_the_setting_is_written_and_read_as_text() -> None:
    strategy = parse_strategy("dp=4,tables=sharded", global_batch=BATCH)
    assert strategy == Strategy(dp=4, tables="sharded")
    assert str(strategy) == "dp=4,tables=sharded"
    assert str(Strategy(dp=4)) == "dp=4"
    with pytest.raises(UnknownNameError, match="sharded"):
        parse_strategy("dp=4,tables=shared", global_batch=BATCH)


def test_the_model_is_what_these_laws_take_it_for() -> None:
    tables = [t.spec.shape for block in graph_of(DLRM).blocks for t in block.fixed if not t.buffer]
    assert tables == [(ROWS, WIDTH)]


def test_exporters_refuse_sharded_tables() -> None:
    with pytest.raises(StrategyError, match=r"^tables=sharded cannot be written for torchtitan: it does not divide"):
        check_common("torchtitan", Strategy(dp=2, tables="sharded"), recomputes=["none"])
    check_common("torchtitan", Strategy(dp=2), recomputes=["none"])
