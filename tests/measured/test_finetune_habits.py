"""Habits of fine-tuning change only the rows that they are about."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from benchmarks.finetune import NEUTRAL, USUAL

from tests.measured.test_finetune import ROW
from traincast.measured.tuning.rows import start_up
from traincast.measured.tuning.words import tuning_of


def test_every_habit_has_a_neutral_value() -> None:
    assert all(getattr(NEUTRAL, name) != getattr(USUAL, name) for name in (each.name for each in fields(USUAL)))


def test_neutral_adapters_are_lora_with_the_stated_number_of_parameters() -> None:
    row = ROW | {"method": "ia3", "lora_rank": None, "trainable_params": 4 * 10 * (512 + 384)}
    assert NEUTRAL.of(row, tuning_of(row)).method == "lora"
    assert USUAL.of(row, tuning_of(row)).method == "ia3"
    assert NEUTRAL.read(0, row).run.request.graph.num_trainable_parameters == row["trainable_params"]


def test_targets_of_megatron_are_a_habit_and_stated_targets_are_not() -> None:
    row = ROW | {"framework": "NeMo", "lora_targets": None}
    assert NEUTRAL.of(row, tuning_of(row)).targets == ("q", "v")
    assert USUAL.of(row, tuning_of(row)).targets == ()
    stated = row | {"lora_targets": "linear_qkv"}
    assert NEUTRAL.of(stated, tuning_of(stated)).targets == ("qkv",)


def test_padding_lengthens_what_is_computed() -> None:
    row = ROW | {"avg_tokens_per_step": 100.0, "notes": "tokens do not count padding"}
    lengths = [replace(USUAL, padded=padded).read(0, row).run.request.graph.tokens_per_sample for padded in (1.0, 1.2)]
    assert lengths == [50, 60]


def test_the_start_is_in_proportion_to_its_habit() -> None:
    row = ROW | {"num_steps": 100, "train_time_s": 10.0}
    assert start_up(row, NEUTRAL.start_s) == 0.0
    assert start_up(row, 4.0) == pytest.approx(0.04)
