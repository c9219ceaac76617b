"""Where a model is cut into pipeline stages."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, graph_of
from traincast import StrategyError
from traincast.strategy.stages import Stage, cut_stages

DEEP = "gpt:layers=16,hidden=256,heads=8,vocab=1000,seq=128"


def cut(spec: str, chunks: int) -> list[Stage]:
    """Stages where every block costs what its products do and sends cost nothing."""
    graph = graph_of(spec)
    costs = [sum(graph.operators[i].flops for i in (*b.forward, *b.backward)) for b in graph.blocks]
    return cut_stages(graph, chunks, costs=costs, sends=[0.0] * len(costs))


def layers_of(spec: str, stages: list[Stage]) -> list[int]:
    (layer,) = [i for i, b in enumerate(graph_of(spec).blocks) if b.count > 1]
    return [stage.blocks.count(layer) for stage in stages]


@pytest.mark.parametrize("chunks", [1, 2, 4, 8, 16])
def test_equal_layers_are_shared_out_evenly(chunks: int) -> None:
    assert layers_of(DEEP, cut(DEEP, chunks)) == [16 // chunks] * chunks


@pytest.mark.parametrize("chunks", [3, 5, 7])
def test_layers_that_do_not_divide_differ_by_one_and_the_first_stage_has_fewest(chunks: int) -> None:
    found = layers_of(DEEP, cut(DEEP, chunks))
    assert sum(found) == 16
    assert max(found) - min(found) == 1
    assert found[0] == min(found)


@pytest.mark.parametrize("spec", [GPT, DEEP, CNN])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_every_block_is_on_one_stage_and_in_order(spec: str, chunks: int) -> None:
    graph = graph_of(spec)
    written_out = [i for i, block in enumerate(graph.blocks) for _ in range(block.count)]
    stages = cut(spec, chunks)
    assert len(stages) == chunks
    assert [b for stage in stages for b in stage.blocks] == written_out
    assert all(stage.blocks for stage in stages)


def test_the_ends_of_a_model_are_on_the_first_and_the_last_stage() -> None:
    first, *_, last = cut(DEEP, 4)
    scopes = [b.scope for b in graph_of(DEEP).blocks]
    assert {scopes[b] for b in first.blocks} >= {"embedding.tokens", "embedding.positions"}
    assert {scopes[b] for b in last.blocks} >= {"head.norm", "head"}


def test_unequal_blocks_are_cut_so_that_the_largest_stage_is_smallest() -> None:
    graph = graph_of(CNN)
    units = [i for i, block in enumerate(graph.blocks) for _ in range(block.count)]
    costs = [1.0 + (7 * i) % 5 for i in range(len(graph.blocks))]
    sends = [0.0] * len(costs)
    if sum(c * b.count for c, b in zip(costs, graph.blocks, strict=True) if b.count > 1) > 0.5 * sum(
        c * b.count for c, b in zip(costs, graph.blocks, strict=True)
    ):
        costs = [c if b.count == 1 else 0.01 for c, b in zip(costs, graph.blocks, strict=True)]
    stages = cut_stages(graph, 2, costs=costs, sends=sends)
    loads = [costs[u] for u in units]
    best = min(max(sum(loads[:at]), sum(loads[at:])) for at in range(1, len(units)))
    assert max(sum(costs[b] for b in s.blocks) for s in stages) == pytest.approx(best, rel=1e-12)


def test_more_stages_than_layers_are_refused_with_both_numbers() -> None:
    with pytest.raises(StrategyError, match=r"pp·virtual_stages = 8 stages, but .* has only 4 blocks"):
        cut(GPT, 8)


def layers_by_weights(spec: str, chunks: int) -> list[int]:
    graph = graph_of(spec)
    zeros = [0.0] * len(graph.blocks)
    stages = cut_stages(graph, chunks, costs=zeros, sends=zeros, by_weights=True)
    return [sum(graph.blocks[b].count > 1 for b in stage.blocks) for stage in stages]


def test_a_cut_by_weights_counts_the_projection_to_the_vocabulary() -> None:
    """Twelve layers of 12·h² weights and logits of v·h, four layers' worth: each of four stages has that of four."""
    spec = "gpt:layers=12,hidden=64,heads=4,vocab=3072,seq=32"
    assert layers_by_weights(spec, 4) == [4, 4, 4, 0]
    assert layers_by_weights(spec, 2) == [8, 4]
    assert layers_by_weights(spec, 3) == [6, 5, 1]


@pytest.mark.parametrize(("vocab", "chunks"), [(3072, 2), (3072, 3), (3072, 4), (96, 2), (96, 4), (20000, 2)])
def test_a_cut_by_weights_keeps_the_projection_to_the_vocabulary_with_the_loss(vocab: int, chunks: int) -> None:
    graph = graph_of(f"gpt:layers=12,hidden=64,heads=4,vocab={vocab},seq=32")
    zeros = [0.0] * len(graph.blocks)
    stages = cut_stages(graph, chunks, costs=zeros, sends=zeros, by_weights=True)
    units = [i for i, block in enumerate(graph.blocks) for _ in range(block.count)]
    assert [block for stage in stages for block in stage.blocks] == units
    logits = [i for i in units if graph.operators[graph.blocks[i].forward[0]].outputs[0].shape[-1:] == (vocab,)]
    assert len(logits) == 2  # the projection, and its softmax
    assert {*logits, units[-1]} <= set(stages[-1].blocks)


def test_a_cut_by_weights_that_leaves_a_stage_empty_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"16 stages cut by weights leave stage 1\d of .* without a block"):
        layers_by_weights("gpt:layers=8,hidden=64,heads=4,vocab=6144,seq=32", 16)
