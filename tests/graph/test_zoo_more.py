"""Segmentation of volumes, speech, ELECTRA and recommendation: published counts, closed forms, and capture."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import graph_of
from tests.graph.training_step import LARGE_PRIME, built, step_on_fake
from traincast import TraincastError
from traincast.graph import Phase
from traincast.graph.zoo import Traceable, build, card, names

FAMILIES = ("nnunet", "vnet", "unet-industrial", "jasper", "quartznet", "electra", "ncf")
MODELS = [name for name in names() if card(name).family in FAMILIES]
WITH_PARAMETERS = [name for name in MODELS if "parameters" in card(name).published]
ONE_PER_FAMILY = list({card(name).family: name for name in reversed(MODELS)}.values())
CONVOLUTIONAL = [name for name in MODELS if card(name).family not in ("electra", "ncf")]
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "nnunet-2d": [(4, 192, 160)],
    "vnet": [(3, 32, 32, 32)],
    "unet-industrial": [(1, 512, 512)],
    "jasper-10x5": [(29, 840)],
    "quartznet-10x5": [(29, 840)],
    "electra-base": [(19, 30528), (128,)],
    "ncf": [(1,)],
}
"""Shapes of the outputs of one model per family, without their batch."""


def count_parameters(model: Traceable) -> int:
    return sum(parameter.numel() for parameter in model.module.parameters())


def convolution_macs(model: Traceable) -> int:
    """Multiply-adds per sample of all convolutions, from the shapes seen in a forward pass of two samples."""
    total = 0

    def count(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        taps = math.prod(layer.kernel_size)
        if isinstance(layer, nn.ConvTranspose2d | nn.ConvTranspose3d):
            total += inputs[0].numel() * layer.out_channels * taps
        else:
            total += output.numel() * layer.in_channels // layer.groups * taps

    kinds = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d
    hooks = [layer.register_forward_hook(count) for layer in model.module.modules() if isinstance(layer, kinds)]
    with torch.no_grad():
        model.module(*model.inputs(2))
    for hook in hooks:
        hook.remove()
    return total // 2


def shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in (output if isinstance(output, tuple) else (output,))]


def expected_shapes(name: str, batch: int) -> list[tuple[int, ...]]:
    return [(batch, *shape) for shape in SHAPES[name]]


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    published = card(name).published
    digits = int(published["parameters_digits"]) - 1
    assert f"{count_parameters(built(name)):.{digits}e}" == f"{published['parameters']:.{digits}e}"


@pytest.mark.long(but=2)
@pytest.mark.parametrize("name", ONE_PER_FAMILY)  # all others run when the graphs that ship are captured
def test_a_training_step_runs_on_fake_tensors_for_a_large_prime_batch(name: str) -> None:
    step_on_fake(build(name), shapes, expected_shapes(name, LARGE_PRIME))


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_graph_has_all_parameters_and_no_unknown_operator(name: str) -> None:
    graph = graph_of(name)
    assert graph.num_parameters == count_parameters(built(name))
    assert not [operator.name for operator in graph.operators if operator.attributes.get("unknown")]


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_captured_forward_flops_are_those_of_the_convolutions(name: str) -> None:
    forward = graph_of(name).flops(Phase.FORWARD)
    assert 2 * convolution_macs(built(name)) == pytest.approx(forward, rel=0.02)


@pytest.mark.parametrize(("name", "widths", "pixels"), [
    ("nnunet-2d", (32, 64, 128, 256, 512, 512), (192, 160)),
    ("nnunet-3d", (32, 64, 128, 256, 320, 320), (128, 128, 128)),
])  # fmt: skip
def test_nnunet_multiplies_as_its_closed_form_says(name: str, widths: tuple[int, ...], pixels: tuple[int, ...]) -> None:
    dims = len(pixels)
    positions = [math.prod(pixels) // 2 ** (dims * level) for level in range(6)]
    total = 3**dims * positions[0] * (4 * widths[0] + widths[0] ** 2) + positions[0] * widths[0] * 4
    for level in range(1, 6):
        finer, width = widths[level - 1], widths[level]
        total += 3**dims * positions[level] * (finer * width + width**2)  # down
        total += 2**dims * positions[level] * width * finer  # up, transposed
        total += 3**dims * positions[level - 1] * 3 * finer**2  # on twice the width, then on the width
    assert convolution_macs(built(name)) == total


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["jasper-10x5", "quartznet-10x5", "quartznet-15x5"])
def test_every_weight_of_an_acoustic_model_is_used_once_per_pair_of_frames(name: str) -> None:
    model = built(name)
    weights = sum(layer.weight.numel() for layer in model.module.modules() if isinstance(layer, nn.Conv1d))
    assert convolution_macs(model) == weights * 840


@pytest.mark.parametrize(
    ("spec", "millions"),
    [("jasper:repeats=3,dense=false", "201"), ("quartznet:blocks=5", "6.71"), ("jasper:repeats=3", "211")],
)
def test_smaller_acoustic_models_of_the_papers_are_as_large_as_published(spec: str, millions: str) -> None:
    assert f"{count_parameters(build(spec)) / 1e6:.3g}" == millions


def test_ncf_has_as_many_parameters_as_its_closed_form_says() -> None:
    embeddings = (138_493 + 26_744) * (64 + 256 // 2)
    mlp = 257 * 256 + 257 * 128 + 129 * 64
    assert count_parameters(built("ncf")) == embeddings + mlp + 64 + 64 + 1


def test_electra_shares_the_embeddings_of_generator_and_discriminator() -> None:
    model = built("electra-base")
    embedding = (30_528 + 512 + 2 + 2) * 768

    def layers(hidden: int) -> int:
        return 12 * (12 * hidden**2 + 13 * hidden)

    discriminator = layers(768) + 769 * 768 + 769
    generator = layers(256) + 769 * 256 + 257 * 768 + 2 * 768 + 30_528
    assert count_parameters(model) == embedding + discriminator + generator


def test_a_supervised_nnunet_has_a_head_for_each_coarser_output() -> None:
    model = build("nnunet:size=64x64,levels=3,max_width=512,supervised=2")
    output = model.module(*model.inputs(2))
    assert shapes(output) == [(2, 4, 64, 64)] * 3
    assert model.loss is not None
    model.loss(output).backward()
    assert all(parameter.grad is not None for parameter in model.module.parameters())


def test_electra_predicts_the_same_share_of_longer_sequences() -> None:
    model = build("electra-base", seq=512)
    assert shapes(model.module(*model.inputs(2))) == [(2, 79, 30528), (2, 512)]


@pytest.mark.parametrize(("spec", "said"), [
    ("nnunet:size=100x100", "multiples of 32, at least 64"),
    ("nnunet:size=128", "two or three sides"),
    ("nnunet:supervised=5", "must be less than levels"),
    ("nnunet:head_kernel=2", "must be odd"),
    ("vnet:size=32x32", "three sides"),
    ("vnet:channels=3", "must be 1 or width=16"),
    ("unet-industrial:resolution=500", "multiples of 16"),
    ("jasper:blocks=12", "not a multiple of its 5 kinds"),
    ("quartznet:frames=0", "frames=0 must be between"),
    ("electra:heads=7", "hidden=768 is not divisible by heads=7"),
    ("electra:task=classify", "classify"),
    ("electra:mask=0.001", "at least one token"),
    ("ncf:layers=255x64", "first is even"),
    ("ncf:dropout=1", "dropout=1"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused_with_a_reason(spec: str, said: str) -> None:
    with pytest.raises(TraincastError) as caught:
        build(spec)
    assert said in str(caught.value)
