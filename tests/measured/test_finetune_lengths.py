"""Lengths of batches follow from what a row states."""

from __future__ import annotations

import math
from statistics import mean, median

import pytest

from traincast.measured.tuning.lengths import TextLengths, batches_of, lengths_of, varied

ROW = {"seq": 2048.0, "micro_batch": 2.0, "global_batch": 2.0, "notes": "seq is a cap"}


def test_percentiles_are_those_of_a_log_normal_distribution() -> None:
    found = TextLengths(mean=200.0, spread=0.5, cap=10**6)
    assert found.at(0.5) == pytest.approx(200.0 * math.exp(-0.125))
    assert found.at(0.99) == pytest.approx(200.0 * math.exp(2.3263 * 0.5 - 0.125), rel=1e-3)


def test_texts_above_the_cap_are_left_out() -> None:
    found = TextLengths(mean=3000.0, spread=0.7, cap=512)
    assert found.at(1.0) == pytest.approx(512.0)
    assert found.at(0.5) < 512.0


def test_a_stated_mean_and_deviation_set_the_distribution() -> None:
    found = lengths_of(ROW | {"notes": "seq = max_length; lengths 3234+-2547 tokens"})
    assert found.mean == 3234.0
    assert math.exp(found.spread**2) == pytest.approx(1.0 + (2547 / 3234) ** 2)


def test_the_mean_follows_from_the_tokens_of_a_step_or_from_the_cap() -> None:
    assert lengths_of(ROW | {"avg_tokens_per_step": 600.0}).mean == 300.0
    unstated = lengths_of(ROW)
    assert TextLengths(mean=unstated.mean, spread=unstated.spread, cap=10**6).at(0.99) == pytest.approx(2048.0)


def test_a_batch_is_as_long_as_its_longest_text() -> None:
    found = TextLengths(mean=500.0, spread=0.5, cap=2048)
    one, many = (found.batches(1, micro_batch=n) for n in (1, 16))
    assert all(0.0 < length <= 1.0 for length in (*one, *many))
    assert median(many) > 1.5 * median(one)
    assert mean(one) == pytest.approx(500 / 2048, rel=0.25)
    assert found.batches(1, micro_batch=1) == one != found.batches(2, micro_batch=1)


def test_packed_and_equal_batches_do_not_vary() -> None:
    assert not varied(ROW | {"notes": "packed to 2048; seq is a cap"})
    assert not varied(ROW | {"notes": ""})
    assert not varied(ROW | {"notes": "captured at full capacity"})
    assert all(
        varied(ROW | {"notes": said}) for said in ("seq is a cap", "max_seq_length 512", "cutoff_len", "max length")
    )
    assert batches_of(ROW | {"notes": ""}, high=False, assumed=[]) == ((1.0, 1.0),)
    assert batches_of(ROW, high=True, assumed=[]) == ((1.0,),)
