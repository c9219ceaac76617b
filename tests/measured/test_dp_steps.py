"""Rows of data-parallel steps become requests, whole steps or single microbatches."""

from __future__ import annotations

import pytest

from traincast.measured.dp_steps import read_run, request_of
from traincast.tables import Row, RowError

ROW: Row = {
    "family": "cnn",
    "model": "resnet18",
    "framework": "PyTorch",
    "container": "23.06",
    "gpu_model": "V100",
    "gpu_mem_gb": 32,
    "system": "DGX-2",
    "n_gpus": 16,
    "n_nodes": 1,
    "gpus_per_node": 16,
    "parallelism": "data",
    "precision": "amp_fp16",
    "batch_per_gpu": 32,
    "grad_accum": None,
    "step_time_s": 0.04,
    "microstep_time_s": 0.02,
}


def test_a_row_says_machine_precision_and_batch() -> None:
    request = request_of(ROW)
    assert request.cluster.device.name == "v100-sxm3-32gb"
    assert (request.cluster.num_nodes, request.cluster.devices_per_node) == (1, 16)
    assert (request.strategy.dp, request.global_batch, request.precision.name) == (16, 512, "amp")


def test_a_container_tells_which_pytorch_it_was() -> None:
    assert request_of(ROW).runtime.name == "pytorch"
    assert request_of({**ROW, "container": "20.06"}).runtime.name == "pytorch-1"
    assert request_of({**ROW, "framework": "TensorFlow2"}).runtime.name == "tensorflow"
    assert request_of({**ROW, "framework": "TensorFlow2", "xla": "yes"}).runtime.name == "tensorflow-xla"


def test_long_sequences_of_binned_pre_training_are_shorter_than_stated() -> None:
    row = {**ROW, "model": "bert-base", "seq_len": 512, "task": "pre-training phase2"}
    assert request_of({**row, "container": "20.06"}).graph.tokens_per_sample == 512
    assert request_of({**row, "container": "21.11"}).graph.tokens_per_sample == 288
    assert request_of({**row, "container": "21.11", "task": "fine-tuning"}).graph.tokens_per_sample == 512


def test_accumulation_makes_microbatches() -> None:
    request = request_of({**ROW, "grad_accum": 4})
    assert (request.strategy.num_microbatches, request.global_batch) == (4, 2048)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "mystery"}, "'mystery' is not in the zoo"),
        ({"batch_per_gpu": None}, "batch_per_gpu is not stated"),
        ({"parallelism": "hybrid (embeddings model-parallel)"}, "expected data parallelism only"),
        ({"gpus_per_node": 6}, "16 GPUs do not fill nodes of 6"),
    ],
)
def test_a_row_that_cannot_be_forecast_says_why(change: Row, reason: str) -> None:
    with pytest.raises(RowError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        request_of({**ROW, **change})


def test_a_rate_that_no_device_reaches_is_no_rate_of_samples() -> None:
    assert read_run(0, ROW).seconds == 0.02
    with pytest.raises(RowError, match="times the peak rate of v100-sxm3-32gb: samples may be counted in another unit"):
        read_run(0, {**ROW, "microstep_time_s": 1e-4})
