"""Detection, recommendation, molecules, speech, image and text: published counts, closed forms, and capture."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import graph_of
from tests.graph.training_step import built
from traincast import TraincastError
from traincast.graph import OpKind, Phase
from traincast.graph.work_amount import model_flops
from traincast.graph.zoo import Traceable, build, card

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "wide-and-deep": [(1,)],
    "dlrm-small": [(1,)],
    "sim": [(1,), (1,), (18, 1)],
    "vae-cf": [(20_108,), (200,), (200,)],
    "tft": [(24, 3)],
    "retinanet-resnet50-fpn": [(4, 201_600), (91, 201_600)],
    "efficientdet-d0": [(4, 49_104), (90, 49_104)],
    "gpunet-0": [(1000,)],
    "moflow": [()],
    "se3-transformer": [(1,)],
    "unet3plus": [(2, 320, 320)],
    "densenet40-k12": [(10,)],
    "transformer-base": [(50, 37_000)],
    "distilbert-base": [(2, 384)],
    "swin-tiny": [(1000,)],
    "wav2vec2-base": [(45,)],
    "whisper-small": [(128, 51_865)],
    "ast": [(35,)],
    "clip-base": [(512,), (512,)],
    "bridgetower-large": [(2,)],
    "bit-r152x2": [(1000,)],
    "perceiver-language": [(2048, 262)],
    "imagen-base-500m": [(3, 64, 64)],
}
"""Shapes of the outputs of one model per family, without their batch, which is their first dim."""
OTHERS = (
    "mask-rcnn-r50-fpn",
    "faster-rcnn-r50-fpn",
    "detr-r50",
    "nmt-medium",
    "t5-v1.1-large",
    "vit-giant",
    "cpm",
    "dcnv2-small",
    "ssd320-resnet50-fpn",
    "gpunet-1",
    "gpunet-2",
    "gpunet-d1",
    "transformer-aan",
    "albert-large",
    "esm-1b",
    "wav2vec2-large",
    "clip-roberta",
    "longformer-base",
    "perceiver-vision-conv",
    "imagen-sr1-430m",
    "imagen-sr1-600m",
)
MODELS = [*SHAPES, *OTHERS]
ONE_PER_FAMILY = [
    name
    for family, name in {card(name).family: name for name in reversed(MODELS)}.items()
    if family not in ("t5", "vit", "nmt-luong")  # small ones of these run elsewhere
]
COUNTED = [
    *(name for name in MODELS if "parameters" in card(name).published),
    *(f"efficientdet-d{size}" for size in (1, 2, 3, 4)),
    "densenet100-k12",
    "transformer-big",
    "swin-base",
    "t5-v1.1-xl",
    "t5-v1.1-xxl",
    "imagen-base-2b",
]


def count_parameters(model: Traceable) -> int:
    return sum(parameter.numel() for parameter in model.module.parameters())


def shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in (output if isinstance(output, tuple) else (output,))]


@pytest.mark.long(but=lambda name: card(name).family)
@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    published, counted = card(name).published, count_parameters(built(name))
    digits = published.get("parameters_digits")
    if digits is None:
        assert counted == published["parameters"]
    else:
        assert f"{counted:.{int(digits) - 1}e}" == f"{published['parameters']:.{int(digits) - 1}e}"


@pytest.mark.parametrize(("spec", "parameters"), [
    ("encoder:layers=12,token_types=2,task=pooled", 109_482_240),
    ("encoder:layers=12,vocab=50265,max_positions=514,token_types=1,task=pooled", 124_645_632),
    ("encoder:layers=24,hidden=1024,heads=16,vocab=50265,max_positions=514,token_types=1,task=pooled", 355_359_744),
    ("encoder:layers=24,hidden=1024,heads=16,vocab=30000,embedding=128,shared=true,task=pooled", 17_683_968),
    ("encoder:layers=12,hidden=4096,heads=64,vocab=30000,embedding=128,shared=true,task=pooled", 222_595_584),
    ("efficientdet:size=d0", 3_880_067),
    ("efficientdet:size=d1", 6_625_898),
    ("densenet-cifar:layers=40,growth=12", 1_019_722),
    ("rcnn:masks=false", 41_755_286),
])  # fmt: skip
def test_public_checkpoints_have_these_parameters(spec: str, parameters: int) -> None:
    """Checkpoints of BERT, RoBERTa and ALBERT with their poolers on Hugging Face, effdet, torchvision."""
    assert count_parameters(build(spec)) == parameters


def test_a_distilbert_is_its_published_checkpoint_and_a_head() -> None:
    assert count_parameters(built("distilbert-base")) == 66_362_880 + 2 * 769


def test_efficientdet_multiplies_as_often_as_published() -> None:
    graph = graph_of("efficientdet-d0")
    products = sum(model_flops(op) * count for op, count in graph if op.phase is Phase.FORWARD)
    assert products == pytest.approx(float(card("efficientdet-d0").published["flops"]), rel=0.03)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("name", ONE_PER_FAMILY)  # all others run when the graphs that ship are captured
def test_a_training_step_runs_on_meta_tensors(name: str) -> None:
    model = build(name)
    output = model.module(*model.inputs(2))
    if name in SHAPES:
        assert shapes(output) == [(2, *shape) for shape in SHAPES[name]]
    assert model.loss is not None
    loss = model.loss(output)
    assert loss.shape == ()
    loss.backward()
    without = [path for path, p in model.module.named_parameters() if p.requires_grad and p.grad is None]
    # A table is updated in backward; a bias of places is added inside the fused attention.
    held = {"dlrm": ["table.weight"], "imagen": ["conditions.pool.places"]}
    assert without == held.get(card(name).family, [])


@pytest.mark.long(but=lambda name: card(name).family)
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_graph_has_all_parameters_and_no_unknown_operator(name: str) -> None:
    graph = graph_of(name)
    assert graph.num_parameters == count_parameters(built(name))
    assert not [operator.name for operator in graph.operators if operator.attributes.get("unknown")]


BOTTOM = 14 * 512 + 513 * 256 + 257 * 128
PAIRS = 27 * 26 // 2
TOP = (128 + PAIRS + 1 + 1) * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
"""Parameters of DLRM's two MLPs; the upper one reads the lower one's output, a product for each pair, and padding."""


def test_the_tables_of_dlrm_are_read_and_updated_by_row() -> None:
    graph = graph_of("dlrm-small")
    rows = [op for op in graph.operators if op.kind is OpKind.EMBEDDING]
    assert [(op.name, op.phase) for op in rows] == [
        ("table_lookup", Phase.FORWARD),
        ("table_lookup_backward", Phase.BACKWARD),
    ]
    assert all(op.outputs[0].shape == (1, 26, 128) for op in rows)
    assert sum(op.parameters[0].numel for op in graph.operators if op.phase is Phase.OPTIMIZER) == BOTTOM + TOP


def test_tables_spread_over_devices_leave_each_its_share() -> None:
    whole, share = graph_of("dlrm:threshold=15"), graph_of("dlrm:threshold=15,devices=8")
    tables = 32_709_138
    assert whole.num_parameters == tables * 128 + BOTTOM + TOP
    assert share.num_parameters == -(-tables // 8) * 128 + BOTTOM + TOP


def test_mask_rcnn_classifies_its_proposals_and_masks_a_quarter_of_them() -> None:
    model = built("mask-rcnn-r50-fpn")
    outputs = model.module(*model.inputs(2))
    assert outputs.scores.shape == (2 * 512, 91)
    assert outputs.masks.shape == (2 * 128, 91, 28, 28)


def test_detr_is_judged_after_every_decoder_layer() -> None:
    model = built("detr-r50")
    assert shapes(model.module(*model.inputs(2))) == [(6, 2, 100, 92), (6, 2, 100, 4)]


def test_se3_has_as_many_kernels_as_pairs_of_degrees_allow() -> None:
    radial = 32 * 44 * 32 * 32
    layer = 5 * 32 + 32 + 32 * 32 + 32 + 4 * 32 + radial
    layer += 4 * 16 * 32 + 4 * 32 * 48 + 2 * 128
    six, seven = build("se3-transformer:layers=6"), build("se3-transformer:layers=7")
    assert count_parameters(seven) - count_parameters(six) == layer


def test_vae_cf_has_as_many_parameters_as_its_closed_form_says() -> None:
    encoder, decoder = 20_109 * 600 + 601 * 400, 201 * 600 + 601 * 20_108
    assert count_parameters(built("vae-cf")) == encoder + decoder


@pytest.mark.parametrize(("spec", "said"), [
    ("dlrm:threshold=5", "threshold"),
    ("dlrm:bottom=512x64", "must end with width=128"),
    ("dlrm:interaction=sum", "interaction"),
    ("wide-and-deep:layers=10x", "widths"),
    ("sim:found=91", "at most long"),
    ("vae-cf:layers=600", "two or more widths"),
    ("tft:heads=3", "not divisible"),
    ("rcnn:size=800x1333", "multiples of 32"),
    ("rcnn:proposals=100", "multiple of 32"),
    ("efficientdet:size=d9", "size of efficientdet"),
    ("gpunet:size=9", "size of gpunet"),
    ("moflow:fold=7", "not divisible"),
    ("se3-transformer:layers=1", "2 or more"),
    ("unet3plus:resolution=100", "multiple of 16"),
    ("densenet-cifar:layers=41", "not 3n + 4"),
    ("transformer:decoder=sum", "decoder"),
    ("encoder:task=sum", "task of encoder"),
    ("swin:resolution=200", "whole number of windows"),
    ("wav2vec2:task=sum", "task of wav2vec2"),
    ("detr:size=100", "multiples of 32"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused_with_a_reason(spec: str, said: str) -> None:
    with pytest.raises(TraincastError) as caught:
        build(spec)
    assert said in str(caught.value)
