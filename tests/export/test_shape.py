"""Dimensions from cards, and layers by stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import CNN, LLAMA, graph_of, request_of
from traincast.export.shape import DECODERS, Decoder, decoder_from, decoder_of, layers_by_stage
from traincast.graph.zoo import card, names


def of_name(name: str) -> Decoder:
    return decoder_from(card(name), 128)


@pytest.mark.parametrize("name", [n for n in names() if card(n).family in DECODERS])
def test_every_decoder_of_the_zoo_has_dimensions(name: str) -> None:
    found = of_name(name)
    assert found.layers == card(name).parameters["layers"]
    assert found.hidden == card(name).parameters["hidden"]
    assert min(found.heads, found.kv_heads, found.head_dim, found.ffn, found.vocab, found.seq) > 0
    assert bool(found.experts) == bool(found.expert_ffn) == bool(found.top_k)


def test_a_family_by_its_dimensions_has_the_defaults_of_its_builder() -> None:
    assert of_name("gpt:layers=2,hidden=64,heads=4") == Decoder(
        family="gpt",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=4,
        head_dim=16,
        ffn=256,
        vocab=50257,
        seq=128,
        tied=True,
        other={"layers": 2, "hidden": 64, "heads": 4},
    )
    llama = of_name("llama:layers=2,hidden=4096,heads=32")
    assert (llama.ffn, llama.vocab, llama.tied) == (11008, 32000, False)


def test_what_is_no_decoder_has_none() -> None:
    assert decoder_of(graph_of(CNN)) is None
    for name in ("bert-large", "a folder", "llama3-8b"):
        assert decoder_of(replace(graph_of(LLAMA), name=name)) is None
    assert decoder_of(graph_of(LLAMA)) == decoder_from(card(LLAMA), 128)


@pytest.mark.parametrize(
    ("strategy", "layers", "split"),
    [
        ("dp=1", 4, [4]),
        ("pp=2,microbatches=4", 4, [2, 2]),
        ("pp=2,vp=2,microbatches=4", 4, [1, 1, 1, 1]),
        ("pp=2,layers=1/3,microbatches=4", 4, [1, 3]),
        ("pp=2,layers=1/3,recompute=full,recompute_every=2,microbatches=4", 4, [1, 3]),
        ("pp=2,microbatches=4", 8, [4, 4]),
        ("pp=2,microbatches=4", 5, [3, 2]),
    ],
)
def test_layers_by_stage_are_those_of_the_forecast(strategy: str, layers: int, split: list[int]) -> None:
    assert layers_by_stage(request_of(strategy, model=LLAMA), layers) == split
