"""The facts of a request by which it is compared with measured runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast.ask import Ask
from traincast.evidence import Traits, traits_of
from traincast.resolve import resolve


def traits(model: str, *, strategy: str, cluster: str = "dgx-h100:4", global_batch: int = 64, lora: str = "") -> Traits:
    ask = Ask(model=model, cluster=cluster, strategy=strategy, global_batch=global_batch)
    return traits_of(resolve(replace(ask, lora=lora) if lora else ask).request)


def test_they_are_those_of_the_request() -> None:
    found = traits("llama3-8b", strategy="dp=2,tp=8,pp=2,micro_batch=2,zero=1,recompute=full")
    assert (found.kind, found.model, found.tokens, found.layers) == ("language", "llama3-8b", 8192, 32)
    assert found.parameters == found.active_parameters == 8030261248
    assert (found.device, found.vendor, found.architecture) == ("h100-sxm5-80gb", "nvidia", "hopper")
    assert (found.power_w, found.devices, found.nodes) == (700.0, 32, 4)
    assert (found.dp, found.tp, found.pp, found.replicas, found.sharded, found.zero) == (2, 8, 2, 2, 2, 1)
    assert (found.tensor_nodes, found.micro_batch, found.global_batch, found.recompute) == (1, 2, 64, "full")


def test_a_tensor_group_across_nodes_is_seen() -> None:
    assert traits("llama3-8b", strategy="dp=2,tp=16").tensor_nodes == 2


def test_states_without_zero_are_not_shared() -> None:
    assert traits("llama3-8b", strategy="dp=4,tp=8").sharded == 1
    assert traits("llama3-8b", strategy="dp=32,zero=3,shard=8").sharded == 8


def test_one_token_uses_a_part_of_a_mixture_of_experts() -> None:
    found = traits("mixtral-8x7b", strategy="dp=32,zero=3,ep=8")
    assert found.kind == "experts"
    assert found.parameters == pytest.approx(46.7e9, rel=0.01)
    assert found.active_parameters == pytest.approx(12.9e9, rel=0.05)


@pytest.mark.parametrize(("model", "kind"), [("resnet50", "images"), ("bert-large", "other")])
def test_kinds_of_models_are_told_apart(model: str, kind: str) -> None:
    assert traits(model, strategy="dp=32").kind == kind


def test_adapters_make_a_tuned_model() -> None:
    assert traits("llama3-8b", strategy="dp=32", lora="rank=16,targets=all").kind == "tuned"
