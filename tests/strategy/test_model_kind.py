"""Kinds of models, by what they read."""

from __future__ import annotations

import pytest

from tests.conftest import graph_of
from traincast.strategy.model_kind import model_kind


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("resnet50", "images"),
        ("mobilenet-v2", "images"),
        ("nnunet-3d", "images"),
        ("mask-rcnn-r50-fpn", "images"),
        ("bert-base", "sequences"),
        ("vit-base", "sequences"),  # products decide its step, as in language models
        ("jasper-10x5", "sequences"),  # its convolutions are products along time
        ("ncf", "tables"),
        ("dlrm-small", "tables"),
        ("wide-and-deep", "tables"),
    ],
)
def test_a_model_is_of_the_kind_that_decides_its_step(model: str, kind: str) -> None:
    assert model_kind(graph_of(model)) == kind
