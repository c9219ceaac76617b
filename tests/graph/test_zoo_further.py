"""Conformer, the U-Nets of Stable Diffusion, DeepFM and LSTMs: published counts, closed forms, and capture."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import graph_of
from tests.graph.training_step import LARGE_PRIME, built, step_on_fake
from traincast import TraincastError
from traincast.graph import OpKind, Phase
from traincast.graph.work_amount import model_flops
from traincast.graph.zoo import Traceable, build, card, names

FAMILIES = ("conformer", "latent-unet", "deepfm", "lstm")
MODELS = [name for name in names() if card(name).family in FAMILIES]
COUNTED = [name for name in MODELS if "parameters" in card(name).published]
SHAPES = {
    "conformer-small": (-1, 420, 129),
    "stable-diffusion-v1-5": (-1, 4, 64, 64),
    "deepfm": (-1, 1),
    "lstm-ptb-medium": (35, -1, 10_000),
}
"""Shapes of the output of one model per family, -1 for the batch; all others run when shipped graphs are captured."""


def count_parameters(model: Traceable) -> int:
    return sum(parameter.numel() for parameter in model.module.parameters())


def shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(output.shape)]


def test_every_family_has_a_model_whose_step_is_run() -> None:
    assert {card(name).family for name in SHAPES} == set(FAMILIES)


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    published, counted = card(name).published, count_parameters(built(name))
    digits = published.get("parameters_digits")
    if digits is None:
        assert counted == published["parameters"]
    else:
        assert f"{counted:.{int(digits) - 1}e}" == f"{published['parameters']:.{int(digits) - 1}e}"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", SHAPES)
def test_a_training_step_runs_on_fake_tensors_for_a_large_prime_batch(name: str) -> None:
    expected = tuple(LARGE_PRIME if side == -1 else side for side in SHAPES[name])
    updated = ("table.weight",) if name.startswith("deepfm") else ()  # in backward
    step_on_fake(build(name), shapes, [expected], without=updated)


@pytest.mark.parametrize("name", SHAPES)
def test_a_captured_graph_has_all_parameters_and_no_unknown_operator(name: str) -> None:
    graph = graph_of(name)
    assert graph.num_parameters == count_parameters(built(name))
    assert not [operator.name for operator in graph.operators if operator.attributes.get("unknown")]


@pytest.mark.long(but=2)
@pytest.mark.parametrize("spec", [
    "conformer:layers=2,hidden=64,heads=4,bands=16,frames=32,vocab=10",
    "latent-unet:width=32,multiples=1x2,depths=1x0,heads=4,text=16,length=8,image=64",
    "deepfm:layers=8x8",
    "lstm:hidden=16,embedding=8,layers=3,vocab=50,tied=true",
    "nmt-luong:layers=2,hidden=16,vocab=50,seq=5",
])  # fmt: skip
def test_every_parameter_gets_a_gradient(spec: str) -> None:
    model = build(spec)
    assert model.loss is not None
    model.loss(model.module(*model.inputs(2))).backward()
    without = [path for path, each in model.module.named_parameters() if each.grad is None]
    assert without == (["table.weight"] if spec.startswith("deepfm") else [])  # a table is updated in backward


def test_a_layer_of_a_conformer_has_the_parameters_of_its_parts() -> None:
    width, kernel = 512, 31
    feeds = 2 * (2 * 4 * width * width + 5 * width)
    attention = 5 * width**2 + 4 * width + 2 * width
    conv = 3 * width**2 + 3 * width + (kernel + 1) * width + 2 * width
    one, two = (count_parameters(build(f"conformer:layers={layers}")) for layers in (1, 2))
    assert two - one == feeds + attention + conv + 5 * 2 * width


def test_deepfm_has_as_many_parameters_as_its_closed_form_says() -> None:
    mlp = (39 * 10 + 1) * 400 + 2 * 401 * 400 + 401
    assert count_parameters(built("deepfm")) == (32_709_138 + 13) * 11 + mlp


def test_an_awd_lstm_has_as_many_parameters_as_its_closed_form_says() -> None:
    cells = [(400, 1150), (1150, 1150), (1150, 400)]
    lstms = sum(4 * b * (a + b + 2) for a, b in cells)
    assert count_parameters(built("awd-lstm-wikitext2")) == 33_278 * 401 + lstms


def test_products_of_an_lstm_follow_its_sizes() -> None:
    graph = graph_of("lstm:layers=2,hidden=32,vocab=100,seq=8")
    rnn = sum(op.flops * n for op, n in graph if op.kind is OpKind.RNN and op.phase is Phase.FORWARD)
    scores = sum(op.flops * n for op, n in graph if op.kind is OpKind.GEMM and op.phase is Phase.FORWARD)
    assert rnn >= 2 * 2 * 8 * 4 * 32 * 64
    assert scores == pytest.approx(2 * 8 * 32 * 100, rel=0.05)


def test_the_unet_of_stable_diffusion_multiplies_as_often_as_published() -> None:
    """The published count leaves out the products inside attention."""
    graph = graph_of("stable-diffusion-v1-5")
    kinds = (OpKind.GEMM, OpKind.CONV)
    products = sum(model_flops(op) * n for op, n in graph if op.phase is Phase.FORWARD and op.kind in kinds)
    assert products == pytest.approx(float(card("stable-diffusion-v1-5").published["flops"]), rel=0.01)


@pytest.mark.parametrize(("spec", "said"), [
    ("conformer:kernel=32", "must be odd"),
    ("conformer:heads=7", "hidden=512 is not divisible by heads=7"),
    ("conformer:frames=1001", "frames=1001 is not divisible by stride=4"),
    ("latent-unet:multiples=1x2", "as many levels"),
    ("latent-unet:depths=a", "a number below 100 for each level"),
    ("latent-unet:image=500", "image=500 is not divisible by stride=64"),
    ("latent-unet:head_width=48", "not divisible by"),
    ("deepfm:threshold=5", "threshold"),
    ("lstm:dropout=1", "less than 1"),
    ("lstm:hidden=0", "hidden=0 must be between"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused_with_a_reason(spec: str, said: str) -> None:
    with pytest.raises(TraincastError) as caught:
        build(spec)
    assert said in str(caught.value)
