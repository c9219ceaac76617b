"""Tacotron 2, Wan, Llama 3.2 Vision and Idefics2: published counts, closed forms, and capture."""

from __future__ import annotations

from collections import Counter

import pytest

from traincast import RequestError
from traincast.graph import OpKind, Phase, zoo
from traincast.graph.load import load_model
from traincast.graph.traced import capture_of_zoo

MODELS = ["tacotron2", "wan2.1-1.3b", "wan2.1-14b", "llama3.2-11b-vision", "llama3.2-90b-vision", "idefics2-8b"]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_as_published(name: str) -> None:
    count = sum(p.numel() for p in zoo.build(name).module.parameters())
    published = zoo.card(name).published
    digits = int(published.get("parameters_digits", 12))
    assert float(f"{count:.{digits}g}") == published["parameters"]


@pytest.mark.long(guard="test_tacotron_runs_two_cells_a_frame_and_one_layer_each_way_over_the_text")
def test_a_frame_of_tacotron_costs_the_same_however_many_there_are() -> None:
    three, four, five = (load_model(f"tacotron2:seq=16,frames={n}") for n in (3, 4, 5))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert five.flops(phase) - four.flops(phase) == pytest.approx(four.flops(phase) - three.flops(phase), rel=1e-3)
    assert [b.count for b in five.blocks if b.scope.startswith("steps.")] == [1, 3]
    assert five.num_parameters == three.num_parameters == 28_193_153


def test_gradients_of_tacotron_s_weights_are_added_once_a_frame_except_the_last() -> None:
    graph = load_model("tacotron2:seq=16,frames=7")
    sums: Counter[tuple[int, ...]] = Counter()
    for op, count in graph:
        if op.phase is Phase.BACKWARD and op.name == "add":
            sums[op.outputs[0].shape] += count
    assert sums[(4096, 768)] == sums[(4096, 1536)] == 7 - 1
    assert sums[(4096, 1024)] == 2 * (7 - 1)
    assert sums[(80, 1536)] == 7 - 1


def test_tacotron_runs_two_cells_a_frame_and_one_layer_each_way_over_the_text() -> None:
    graph = load_model("tacotron2:seq=16,frames=6")
    assert sum(n for op, n in graph if op.kind is OpKind.RNN and op.phase is Phase.FORWARD) == 2 * 6 + 2


@pytest.mark.long(guard="test_parameters_are_as_published")
def test_products_of_wan_follow_its_sizes() -> None:
    graph = load_model("wan:layers=4,hidden=64,heads=4,ffn=128,text_width=32,words=8,frames=5,height=32,width=32")
    tokens, words = 2 * 2 * 2, 8
    layer = tokens * (4 + 2) * 64**2 + words * 2 * 64**2 + tokens * 2 * 64 * 128
    ends = words * (32 * 64 + 64**2) + 256 * 64 + 64**2 + 6 * 64**2 + tokens * 64 * 64
    products = sum(op.flops * n for op, n in graph if op.kind is OpKind.GEMM and op.phase is Phase.FORWARD)
    biases = graph.num_parameters  # more than the additions of all biases of one token
    assert products == pytest.approx(2 * (4 * layer + ends), abs=biases * tokens)


@pytest.mark.long(guard="test_parameters_are_as_published")
def test_one_of_five_layers_of_llama_vision_attends_to_the_image() -> None:
    spec = "llama-vision:layers=10,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=100,seq=8,image=28,tiles=2"
    kinds = [type(layer).__name__ for layer in zoo.build(spec).module.layers]
    assert [n for n, kind in enumerate(kinds) if kind == "CrossLayer"] == [3, 8]
    graph = load_model(spec)
    seen = [op for op in graph.operators if op.kind is OpKind.ATTENTION and op.phase is Phase.FORWARD]
    assert {op.inputs[1].shape[-2] for op in seen} == {8, 2 * (2 * 2 + 1)}


@pytest.mark.long(guard="test_parameters_are_as_published")
def test_an_image_of_idefics_is_64_tokens_and_size_of_images_counts() -> None:
    small, large = (capture_of_zoo(f"idefics2:layers=3,seq=128,image={side}") for side in (140, 280))
    assert small.num_parameters == large.num_parameters
    assert large.flops() > 1.5 * small.flops()
    assert small.tokens_per_sample == 128


def test_pixels_that_make_no_whole_patches_are_refused() -> None:
    with pytest.raises(RequestError, match="image=100 is not divisible by patch=14"):
        zoo.build("idefics2:image=100")
    with pytest.raises(RequestError, match="height=100 is not divisible by pixels of a patch=16"):
        zoo.build("wan:height=100")
