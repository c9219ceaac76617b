"""Settings that a row leaves out, told by memory."""

from __future__ import annotations

import pytest

from traincast.measured.dp_steps import read_row
from traincast.measured.room import needed_bytes
from traincast.tables import Row


def _row(**stated: object) -> Row:
    return {
        "model": "distilbert",
        "framework": "PyTorch",
        "gpu_model": "A100-SXM4-40GB",
        "n_gpus": 8,
        "precision": "fp32",
        "batch_per_gpu": 32,
        "step_time_s": 0.1,
        **stated,
    }


def test_stated_memory_tells_the_length_of_texts() -> None:
    reading = read_row(_row(notes="mem=13.9/40.0"))
    assert reading.request.graph.tokens_per_sample == 512
    assert "sequence length not stated: 512, which fits the stated 15 GB" in reading.assumed
    assert read_row(_row()).request.graph.tokens_per_sample == 384


@pytest.mark.parametrize(
    "row",
    [
        _row(notes="mem=8.9/40.0"),  # as much as the usual length needs
        _row(notes="mem=13.9/40.0; squad"),  # the dataset tells
        _row(notes="mem=13.9/40.0", seq_len=384),
    ],
)
def test_a_length_that_is_known_otherwise_stays(row: Row) -> None:
    assert read_row(row).request.graph.tokens_per_sample == 384


def test_a_run_that_would_not_fit_recomputed_its_layers() -> None:
    row = _row(model="bert-large", precision="fp16", batch_per_gpu=128, seq_len=512)
    reading = read_row(row)
    assert reading.request.strategy.recompute == "full"
    assert any(said.startswith("without recomputation the run needs 1") for said in reading.assumed)
    assert needed_bytes(reading.request) < reading.request.cluster.device.memory_bytes
    assert read_row({**row, "batch_per_gpu": 16}).request.strategy.recompute == "none"


def test_a_row_that_lists_how_memory_was_saved_would_name_recomputation() -> None:
    row = _row(model="bert-large", precision="fp16", batch_per_gpu=128, seq_len=512, notes="zero_1; grad accum 4")
    assert read_row(row).request.strategy.recompute == "none"
