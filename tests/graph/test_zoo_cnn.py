"""The convolutional networks of the zoo against published parameter and FLOP counts, without any weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.graph.training_step import LARGE_PRIME, built, step_on_fake
from traincast import RequestError
from traincast.graph.zoo import FAMILIES, Traceable, build, card, names
from traincast.graph.zoo.images.regnet import widths_of_blocks

MODULES = {
    f"traincast.graph.zoo.{name}"
    for name in (
        "plain_cnn",
        "inception",
        "resnet",
        "mobile",
        "shufflenet",
        "densenet",
        "nasbench",
        "ssd",
        "unet",
        "convnext",
        "regnet",
        "segmentation",
        "yolo",
    )
}
CNN_FAMILIES = [family for family, place in FAMILIES.items() if place.partition(":")[0] in MODULES]
CNNS = [name for name in names() if card(name).family in CNN_FAMILIES]
WITH_PARAMETERS = [name for name in CNNS if "parameters" in card(name).published]
ONE_PER_FAMILY = list(
    {
        card(name).family: name
        for name in sorted(CNNS, key=lambda name: card(name).published.get("parameters", 0), reverse=True)
    }.values()
)
"""The smallest of each family."""


def count_parameters(model: Traceable) -> int:
    return sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad)


def multiply_adds(model: Traceable, *, without: str | None = None) -> int:
    """Multiply-adds per sample of convolutions and linear layers, from the shapes seen in a forward pass."""
    batch = 2  # with one sample, batch normalisation refuses feature maps of 1x1
    total = 0
    hooks = []

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += output.numel() * layer.in_features
        elif isinstance(layer, nn.ConvTranspose2d):
            total += inputs[0].numel() * layer.out_channels // layer.groups * math.prod(layer.kernel_size)
        else:
            total += output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)

    for name, layer in model.module.named_modules():
        counted = isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)
        if counted and not (without and name.startswith(without)):
            hooks.append(layer.register_forward_hook(count))
    with torch.no_grad():
        model.module(*model.inputs(batch))
    for hook in hooks:
        hook.remove()
    return total // batch


def output_shapes(name: str, batch: int) -> list[tuple[int, ...]]:
    classes = card(name).parameters["classes"]
    if card(name).family == "ssd":
        return [(batch, 4, 8732), (batch, classes, 8732)]
    if card(name).family == "segmentation":
        return [(batch, classes, 480, 480)] * 2
    if card(name).family == "yolo":
        return [(batch, 25_200, 5 + classes) if "v5" in name else (batch, 8_400, 64 + classes)]
    if name == "unet":
        return [(batch, classes, 388, 388)]
    heads = {"googlenet": 3, "inception-v3": 2}.get(name, 1)
    return [(batch, classes)] * heads


def shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in (output if isinstance(output, tuple) else (output,))]


@pytest.mark.long(but=lambda name: card(name).family)
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    published = card(name).published
    counted = count_parameters(built(name))
    digits = published.get("parameters_digits")
    if digits is not None:
        assert f"{counted:.{int(digits) - 1}e}" == f"{published['parameters']:.{int(digits) - 1}e}"
    else:
        assert counted == published["parameters"]


@pytest.mark.long(but=5)
@pytest.mark.parametrize("name", ONE_PER_FAMILY)  # all others run when the graphs that ship are captured
def test_a_training_step_runs_on_fake_tensors_for_a_large_prime_batch(name: str) -> None:
    step_on_fake(build(name), shapes, output_shapes(name, LARGE_PRIME))


@pytest.mark.parametrize("family", CNN_FAMILIES)
def test_every_family_is_in_the_zoo_and_builds_with_its_defaults(family: str) -> None:
    assert family in {card(name).family for name in CNNS}
    assert count_parameters(build(f"{family}:")) > 0


@pytest.mark.parametrize("name", CNNS)
def test_every_card_says_where_its_figures_come_from(name: str) -> None:
    assert card(name).published["source"]
    assert "\n" not in card(name).description


@pytest.mark.parametrize("name", ["googlenet", "inception-v3"])
def test_auxiliary_classifiers_are_silent_outside_training(name: str) -> None:
    model = build(name)
    model.module.eval()
    logits = model.module(*model.inputs(2))
    assert shapes(logits) == [(2, 1000)]
    assert model.loss is not None
    assert model.loss(logits).shape == ()


def test_googlenet_without_auxiliary_classifiers_has_the_published_size() -> None:
    parameters = build("googlenet").module.named_parameters()
    assert sum(each.numel() for name, each in parameters if not name.startswith("aux")) == 6_624_904


def test_ssd_on_resnet50_has_the_parameters_of_its_parts() -> None:
    resnet50, classifier, conv5 = 25_557_032, 2048 * 1000 + 1000, 14_964_736
    extras = [(1024, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256)]
    pairs = sum(i * inner + 2 * inner + 9 * inner * o + 2 * o for i, inner, o in extras)
    boxes = zip([1024, *(o for *_, o in extras)], (4, 6, 6, 6, 4, 4), strict=True)
    heads = sum((9 * channels + 1) * count * (4 + 81) for channels, count in boxes)
    expected = resnet50 - classifier - conv5 + pairs + heads
    assert count_parameters(build("ssd300-resnet50")) == expected


def test_a_convnext_is_trained_by_adamw_as_its_authors_do_and_a_regnet_by_momentum() -> None:
    assert (built("convnext-tiny").optimizer, built("regnety-400mf").optimizer) == ("adamw", "sgd")


def test_blocks_of_a_regnet_are_as_wide_as_published() -> None:
    """Radosavovic et al. 2020, table 3 (RegNetX) and table 4 (RegNetY): blocks and widths of the stages."""
    y, x = (
        widths_of_blocks(layers=18, start=200, slope=106.23, ratio=2.48, group=112),
        widths_of_blocks(layers=25, start=88, slope=26.31, ratio=2.25, group=48),
    )
    assert [(w, y.count(w)) for w in dict.fromkeys(y)] == [(224, 2), (448, 4), (1232, 11), (3024, 1)]
    assert [(w, x.count(w)) for w in dict.fromkeys(x)] == [(96, 2), (192, 6), (432, 15), (1008, 2)]


def test_unet_in_its_padded_normalised_form_keeps_the_resolution() -> None:
    model = build("unet:channels=3,classes=1,padded=true,norm=true,resolution=256")
    assert shapes(model.module(*model.inputs(2))) == [(2, 1, 256, 256)]
    # Convolutions without bias before a norm: the same 31,037,633 as the public PyTorch versions.
    assert count_parameters(model) == 31_037_633


def test_a_nasbench_cell_can_be_written_as_text() -> None:
    known = card("nasbench-inception").parameters
    matrix = "/".join("".join(map(str, row)) for row in known["matrix"])
    model = build(f"nasbench:matrix={matrix},operations={'/'.join(known['operations'])}")
    assert count_parameters(model) == card("nasbench-inception").published["parameters"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("resnet:layers=49", "choose layers from 18, 34, 50, 101, 152"),
        ("resnet:layers=18,groups=32", "no groups"),
        ("resnet-cifar:layers=21", "6n \\+ 2"),
        ("vgg:layers=12", "11, 13, 16, 19"),
        ("densenet:layers=100", "121, 161, 169, 201"),
        ("shufflenet-v2:width=3.0", "0.5, 1.0, 1.5, 2.0"),
        ("mobilenet-v3:size=medium", "large, small"),
        ("efficientnet:version=v3", "v1"),
        ("ssd:backbone=vgg", "vgg16"),
        ("convnext:depths=3x3x9", "blocks of four stages"),
        ("convnext:resolution=16", "at least 32"),
        ("regnet:ratio=1", "more than 1"),
        ("segmentation:layers=18", "choose layers from 50, 101, 152"),
        ("segmentation:head=unet", "deeplabv3, fcn"),
        ("yolo:version=v4", "v5, v8"),
        ("yolo:resolution=600", "multiple of 32"),
        ("yolo:width=0", "between 0.1 and 4"),
        ("nasbench:matrix=01/00", "0 operations"),
        ("nasbench:matrix=010/001/000,operations=conv9x9", "conv"),
        ("nasbench:matrix=010/011/000,operations=conv3x3", "forward"),
        ("nasbench:matrix=001/001/000,operations=conv3x3", "vertex 1 is not on a path"),
        ("resnet:depth=50", "depth"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_with_the_choices(spec: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        build(spec)
