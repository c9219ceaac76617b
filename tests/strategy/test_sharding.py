"""Which layers are cut by column and which by row, found from the graph or said by the user."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, LLAMA, graph_of
from traincast import StrategyError
from traincast.graph import Phase
from traincast.strategy.program.sharding import Role, Sharding, check_shardable, find_sharding

T5 = "t5:layers=3,hidden=64,heads=4,vocab=100,seq=32"


def roles_of(spec: str, sharding: Sharding | None = None) -> dict[str, Role]:
    """Roles of the forward linear layers and look-ups, by scope."""
    graph = graph_of(spec)
    found = sharding or find_sharding(graph)
    return {
        op.scope: role
        for op, role in zip(graph.operators, found.roles, strict=True)
        if op.phase is Phase.FORWARD and (op.parameters and op.kind.value in ("gemm", "grouped_gemm", "embedding"))
    }


def test_a_gpt_is_cut_as_megatron_cuts_it() -> None:
    """Shoeybi et al. 2019, figure 3: first product of attention and MLP by column, second by row."""
    assert roles_of(GPT) == {
        "embedding.tokens": Role.VOCAB,
        "embedding.positions": Role.WHOLE,
        "layers.0.attention.qkv": Role.COLUMN,
        "layers.0.attention.out": Role.ROW,
        "layers.0.mlp.up": Role.COLUMN,
        "layers.0.mlp.down": Role.ROW,
        "head": Role.VOCAB,
    }


def test_a_gated_mlp_is_cut_too() -> None:
    roles = roles_of(LLAMA)
    assert roles["layers.0.attention.out"] is Role.ROW
    assert roles["layers.0.mlp.down"] is Role.ROW
    rest = {scope: role for scope, role in roles.items() if scope.startswith("layers") and role is not Role.ROW}
    assert set(rest.values()) == {Role.COLUMN}


def test_an_mlp_as_wide_as_the_vocabulary_is_no_logits() -> None:
    graph = graph_of("gpt:layers=2,hidden=16,heads=2,vocab=64,seq=8")
    roles = roles_of("gpt:layers=2,hidden=16,heads=2,vocab=64,seq=8")
    assert (roles["layers.0.mlp.up"], roles["head"]) == (Role.COLUMN, Role.VOCAB)
    whole = find_sharding(graph, split_vocabulary=False)
    assert roles_of(graph.name, whole)["layers.0.mlp.up"] is Role.COLUMN


def test_what_lies_between_is_shared_and_what_lies_outside_is_whole() -> None:
    graph = graph_of(GPT)
    by_name = {
        (op.scope, op.name): role
        for op, role in zip(graph.operators, find_sharding(graph).roles, strict=True)
        if op.phase is Phase.FORWARD
    }
    assert by_name["layers.0.mlp", "gelu"] is Role.INSIDE
    assert by_name["layers.0.norm1", "native_layer_norm"] is Role.WHOLE
    assert by_name["layers.0", "add"] is Role.WHOLE
    assert {role for (_, name), role in by_name.items() if "attention" in name} == {Role.INSIDE}


def test_backward_operators_have_the_role_of_their_forward() -> None:
    graph = graph_of(GPT)
    sharding = find_sharding(graph)
    for index, op in enumerate(graph.operators):
        source = graph.forward_of[index]
        if op.phase is Phase.BACKWARD and source >= 0 and op.kind.value in ("gemm", "attention"):
            assert sharding.roles[index] is sharding.roles[source]


def test_an_encoder_and_decoder_are_cut_in_both_halves() -> None:
    roles = roles_of(T5)
    assert roles["encoder.0.attention.qkv"] is roles["decoder.0.cross.q"] is Role.COLUMN
    assert roles["encoder.0.attention.out"] is roles["decoder.0.cross.out"] is Role.ROW


def test_a_users_rules_override_what_is_found() -> None:
    graph = graph_of(GPT)
    sharding = find_sharding(graph, (("layers.*.mlp.*", "replicate"),))
    roles = roles_of(GPT, sharding)
    assert roles["layers.0.mlp.up"] is roles["layers.0.mlp.down"] is Role.WHOLE
    assert roles["layers.0.attention.qkv"] is Role.COLUMN


def test_a_rule_that_matches_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(StrategyError, match=r"shard rule mlp.\*=column matches no linear layer .* layers.0.mlp.up"):
        find_sharding(graph_of(GPT), (("mlp.*", "column"),))


def test_a_network_without_pairs_of_linear_layers_cannot_be_cut() -> None:
    graph = graph_of(CNN)
    check_shardable(graph, find_sharding(graph), 1)
    with pytest.raises(StrategyError, match="tp=2, but no pair of column and row shards was found"):
        check_shardable(graph, find_sharding(graph), 2)
