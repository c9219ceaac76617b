"""Intervals on clusters that nobody calibrated: kinds of steps, and what widens them."""

from __future__ import annotations

import math

import pytest

from traincast import capture
from traincast.report.uncertainty import FACTORS, LEAST, STRAINED, step_kind, widened


@pytest.mark.parametrize(
    ("model", "idle", "kind"),
    [
        ("gpt2", 0.1, "language"),
        ("gpt2", STRAINED + 0.01, "strained"),
        ("mixtral-8x7b", 0.9, "experts"),
        ("resnet50", 0.9, "images"),
        ("bert-base", 0.1, "other"),
        ("ncf", 0.1, "other"),
    ],
)
def test_the_kind_of_a_step_is_told_by_its_model_and_by_what_it_waits_for(model: str, idle: float, kind: str) -> None:
    assert step_kind(capture(model, use_cache=True), idle_share=idle) == kind


@pytest.mark.parametrize("kind", list(FACTORS))
def test_an_interval_grows_with_the_doubt_about_its_works_and_never_vanishes(kind: str) -> None:
    sure = widened(kind, below=0.0, above=0.0, devices=8)  # type: ignore[arg-type]
    unsure = widened(kind, below=0.5, above=0.5, devices=8)  # type: ignore[arg-type]
    assert unsure[0] < sure[0] < 1.0 < sure[1] < unsure[1]
    low, high = FACTORS[kind]  # type: ignore[index]
    assert widened(kind, below=0.0, above=0.0, devices=64) == sure  # type: ignore[arg-type]
    larger = widened(kind, below=0.0, above=0.0, devices=4096)  # type: ignore[arg-type]
    assert larger[0] < sure[0] and sure[1] < larger[1]
    assert [-math.log(sure[0]), math.log(sure[1])] == pytest.approx([low * LEAST, high * LEAST])


def test_steps_that_wait_for_hosts_and_links_may_take_far_longer() -> None:
    calm, strained = (widened(kind, below=0.2, above=0.3, devices=8) for kind in ("language", "strained"))
    assert calm[0] == strained[0]
    assert strained[1] > 1.5 * calm[1]
