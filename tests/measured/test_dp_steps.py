"""Rows of data-parallel steps become requests, whole steps or single microbatches."""

from __future__ import annotations

import pytest

from tests.measured.asking import dp_request
from traincast.graph import OpKind
from traincast.measured.dialect import shipped_dialect
from traincast.measured.dp_steps import group_of, read_row, read_run
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
    request = dp_request(ROW)
    assert request.cluster.device.name == "v100-sxm3-32gb"
    assert (request.cluster.num_nodes, request.cluster.devices_per_node) == (1, 16)
    assert (request.strategy.dp, request.global_batch, request.precision.name) == (16, 512, "amp")


def test_the_interconnect_of_a_row_is_the_network_between_its_nodes() -> None:
    row = {**ROW, "system": None, "gpu_model": "A100-SXM4-40GB", "gpu_mem_gb": None, "n_nodes": 2, "gpus_per_node": 8}
    usual, stated = (read_run(0, {**row, "interconnect": said}) for said in (None, "2 x 100 GbE RoCE + 1 GbE mgmt"))
    assert "network between nodes not stated: 8 × HDR InfiniBand" in usual.assumed
    place = stated.request.cluster
    assert (place.nics_per_node, place.inter_node.name, place.inter_node.bandwidth) == (2, "RoCE", 12.5e9)
    assert not any("network" in sentence for sentence in stated.assumed)
    kind = read_run(0, {**row, "interconnect": "4X EDR"})
    assert "network adapters of a node not stated: 8 × EDR InfiniBand" in kind.assumed
    unknown = read_run(0, {**row, "interconnect": "two tin cans"})
    assert "network 'two tin cans' not known: 8 × HDR InfiniBand" in unknown.assumed


def test_a_container_tells_which_pytorch_it_was() -> None:
    assert dp_request(ROW).runtime.name == "pytorch"
    assert dp_request({**ROW, "container": "20.06"}).runtime.name == "pytorch-1"
    assert dp_request({**ROW, "framework": "TensorFlow2"}).runtime.name == "tensorflow"
    assert dp_request({**ROW, "framework": "TensorFlow2", "xla": "yes"}).runtime.name == "tensorflow-xla"


def test_errors_are_grouped_by_source_then_by_repository_then_by_family() -> None:
    where = "acme/models:vision/README.md"
    assert group_of({"source": "acme-table", "where": where, "family": "cnn"}) == "acme-table"
    assert group_of({"where": where, "family": "cnn"}) == "acme/models"
    assert group_of({"family": "cnn"}) == "cnn"
    assert group_of({}) == "unknown"


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "channels_first"),
        ({"layout": "NHWC"}, "channels_last"),
        ({"notes": "memory format channels_last"}, "channels_last"),
        ({"notes": "no channels_last"}, "channels_first"),
        ({"framework": "TensorFlow2"}, "channels_last"),
        ({"framework": "TensorFlow2", "layout": "NCHW"}, "channels_first"),
    ],
)
def test_a_row_tells_how_its_images_lie_in_memory(changes: Row, layout: str) -> None:
    assert dp_request({**ROW, **changes}).runtime.kernels.layout == layout


def test_scripts_of_a_published_table_tell_the_layout_of_their_mixed_precision() -> None:
    file = "PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
    known = shipped_dialect().translated({**ROW, "file": file})
    assert dp_request(known).runtime.kernels.layout == "channels_last"
    assert "layout" not in shipped_dialect().translated({**ROW, "file": file, "precision": "fp32"})


def test_a_row_may_launch_recorded_graphs() -> None:
    launches = dp_request({**ROW, "notes": "CUDA graphs"}).runtime.launches
    assert launches.cuda_graphs
    assert launches.step == 0.0
    assert not dp_request({**ROW, "notes": "without CUDA graphs"}).runtime.launches.cuda_graphs


def test_long_sequences_of_binned_pre_training_are_shorter_than_stated() -> None:
    row = {**ROW, "model": "bert-base", "seq_len": 512, "task": "pre-training phase2"}
    assert dp_request({**row, "container": "20.06"}).graph.tokens_per_sample == 512
    assert dp_request({**row, "container": "21.11"}).graph.tokens_per_sample == 288
    assert dp_request({**row, "container": "21.11", "task": "fine-tuning"}).graph.tokens_per_sample == 512


def test_accumulation_makes_microbatches() -> None:
    request = dp_request({**ROW, "grad_accum": 4})
    assert (request.strategy.num_microbatches, request.global_batch) == (4, 2048)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "mystery"}, "'mystery' is not in the zoo"),
        ({"batch_per_gpu": None}, "batch_per_gpu is not stated"),
        ({"parallelism": "hybrid (embeddings model-parallel)"}, "expected data parallelism only"),
        ({"gpus_per_node": 6}, "n_gpus=16, n_nodes=1 and 6 GPUs per node contradict each other"),
    ],
)
def test_a_row_that_cannot_be_forecast_says_why(change: Row, reason: str) -> None:
    with pytest.raises(RowError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        dp_request({**ROW, **change})


def test_machines_are_read_as_those_of_other_rows() -> None:
    uneven = {**ROW, "n_gpus": 12, "n_nodes": None, "gpus_per_node": 8, "global_batch": None}
    reading = read_row(uneven)
    assert reading.request.cluster.devices_per_node == 6
    assert "gpus_per_node contradicts n_gpus: 6, since 12 do not fill 8" in reading.assumed


def test_a_rate_that_no_device_reaches_is_no_rate_of_samples() -> None:
    assert read_run(0, ROW).seconds == 0.02
    with pytest.raises(RowError, match="times the peak rate of v100-sxm3-32gb: samples may be counted in another unit"):
        read_run(0, {**ROW, "microstep_time_s": 1e-4})


def test_a_rate_of_mel_frames_becomes_the_time_of_a_step_and_this_is_said() -> None:
    row = {**ROW, "model": "tacotron2", "batch_per_gpu": 64, "throughput_samples_per_s": 283_000.0}
    row = {**row, "step_time_s": None, "microstep_time_s": None}
    run = read_run(0, row)
    assert run.seconds == pytest.approx(16 * 64 * 566 / 283_000.0)
    assert "the rate counts mel frames: 566 per sample, as LJSpeech has" in run.assumed
    assert read_run(0, {**row, "throughput_samples_per_s": 500.0}).seconds == 16 * 64 / 500.0


VIDEO: Row = {
    **ROW,
    "model": "wan2.1-1.3b",
    "framework": "MaxDiffusion (JAX)",
    "gpu_model": "TPU v7x",
    "system": "",
    "n_nodes": 4,
    "gpus_per_node": 4,
    "precision": "bf16",
    "batch_per_gpu": 0.5,
    "seq_len": 75_600,
    "global_batch": 8,
}


def test_gpus_that_share_a_sample_divide_its_sequence() -> None:
    strategy = dp_request(VIDEO).strategy
    assert (strategy.dp, strategy.cp, strategy.zero, strategy.recompute) == (8, 2, 0, "full")
    assert dp_request(VIDEO).global_batch == 8
    sharded = dp_request({**VIDEO, "notes": "ici_data=8 ici_fsdp=4 (32 devices)"}).strategy
    assert (sharded.zero, sharded.shard) == (3, 2)
    tokens = {t.shape[-2] for op, _ in dp_request(VIDEO).graph if op.kind is OpKind.ATTENTION for t in op.inputs[:1]}
    assert tokens == {75_600}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch_per_gpu": 0.3}, "16 GPUs do not divide into groups for one sample each"),
        ({"model": "resnet18"}, "2 GPUs share a sample, and resnet18 has no sequence to divide between them"),
        ({"notes": "data=3 fsdp=4"}, "a mesh of 3 x 4 is not one of 16 GPUs"),
    ],
)
def test_samples_that_cannot_be_shared_are_refused(change: Row, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        dp_request({**VIDEO, **change})
