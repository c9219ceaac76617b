"""Dimensions of well-known models give the number of parameters that their names or publishers state."""

from __future__ import annotations

import re

import pytest

from tests.conftest import graph_of
from traincast.graph.zoo.known_models import _tables, known_model

NAMES = [name for family in ("llama", "gpt") for names in _tables()[family] for name in names.split()]
SIZED = {name: float(said[1]) for name in NAMES if (said := re.search(r"-(\d+(?:\.\d+)?)b(?=-|$)", name))}


def parameters(spec: str) -> float:
    """The closed form of a decoder with dense layers, without biases and norms, in billions."""
    family, _, said = spec.partition(":")
    given = dict(part.split("=") for part in said.split(","))
    number = {key: int(value) for key, value in given.items() if value.isdigit()}
    hidden, heads = number["hidden"], number["heads"]
    head = number.get("head_dim", hidden // heads)
    attention = hidden * head * (2 * heads + 2 * number.get("kv_heads", heads))
    feeds = (3 if family == "llama" else 2) * hidden * number["ffn"]
    tables = (1 if given["tied"] == "true" else 2) * number["vocab"] * hidden
    return (number["layers"] * (attention + feeds) + tables) / 1e9


@pytest.mark.parametrize("name", SIZED)
def test_dimensions_give_the_size_that_the_name_states(name: str) -> None:
    spec = known_model(name)
    assert spec is not None
    assert parameters(spec) == pytest.approx(SIZED[name], rel=0.27)  # publishers round: Gemma 2B has 2.5 billion


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mamba2-130m", 0.129),
        ("gemma-3-1b", 1.0),
        ("OLMo-2-1B", 1.485),
        ("nemotron-nano-9b-v2", 8.89),
        ("Moonlight-16B-A3B", 15.96),
        ("mamba-370m", 0.371516416),
        ("falcon-mamba-7b", 7.27),
        ("Jamba-1.5-Mini", 51.6),
        ("snowflake-arctic", 479),
        ("Ling-lite", 16.8),
        ("Hunyuan-Large", 389),
        ("Apertus-8B", 8.05),
        ("Phi-mini-MoE", 7.65),
    ],
)
def test_a_captured_graph_has_the_published_number_of_parameters(name: str, billions: float) -> None:
    spec = known_model(name)
    assert spec is not None
    assert graph_of(spec).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("name", "billions"), [("Jamba-1.5-Mini", 12), ("Jamba-1.5-Large", 94), ("Ling-lite", 2.75), ("Hunyuan-Large", 52)]
)
def test_the_experts_of_a_token_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    spec = known_model(name)
    assert spec is not None
    given = dict(part.split("=") for part in spec.partition(":")[2].split(","))
    graph = graph_of(spec)
    layers = int(given["layers"]) * given.get("feeds", "e").count("e") // len(given.get("feeds", "e"))
    one = 3 * int(given["hidden"]) * int(given["expert_ffn"])
    idle = layers * (int(given["experts"]) - int(given["top_k"])) * one
    assert (graph.num_parameters - idle) / 1e9 == pytest.approx(billions, rel=0.015)
