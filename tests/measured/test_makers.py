"""Rows of TPUs, Trainium and Gaudi, and of frameworks by their year, as requests."""

from __future__ import annotations

import pytest

from tests.measured.asking import steps_request
from tests.measured.test_steps import ROW
from traincast.measured.machines import cluster_of
from traincast.measured.rates import flops_per_sample
from traincast.measured.steps import read_row, read_run
from traincast.tables import Row

TPU: Row = {
    **ROW,
    "framework": "MaxText (JAX)",
    "gpu": "TPU v5e",
    "hardware": "2x v5e-256",
    "interconnect": "ICI + DCN between slices",
    "n_gpus": 512.0,
    "gpus_per_node": None,
    "dp": 512.0,
    "tp": 1.0,
    "pp": 1.0,
    "zero": 3.0,
    "micro_batch": 2.0,
    "grad_accum": 1.0,
    "global_batch": 1024.0,
    "recompute": "remat_policy=full",
    "mem_gb": None,
}
NO_SHAPE: Row = dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "params_b"))
CORES: Row = {**ROW, "framework": "NeMo-Megatron 2.16.0", "gpu": "Trainium1 NeuronCore-v2", "gpus_per_node": 16.0}


def test_slices_are_tori_and_each_of_them_holds_all_parameters() -> None:
    request = steps_request(TPU)
    place = request.cluster
    assert (place.device.name, place.num_devices, place.domain_devices) == ("tpu-v5e", 512, 256)
    assert (place.intra_topology, request.runtime.name) == ("torus", "maxtext")
    assert (request.strategy.zero, request.strategy.shard, request.strategy.recompute) == (3, 256, "full")
    whole = steps_request({**TPU, "notes": "dcn_fsdp_parallelism=2"})
    assert whole.strategy.shard == 0
    notes = {**TPU, "hardware": "", "notes": "4 slices data-parallel over DCN"}
    assert steps_request(notes).cluster.domain_devices == 128
    assert steps_request({**TPU, "notes": "FSDP8 in node x DP over nodes"}).strategy.shard == 8


def test_a_batch_of_one_device_is_multiplied_by_the_devices_of_a_replica() -> None:
    reading = read_row({**TPU, "dp": 128.0, "tp": 4.0})
    assert reading.request.strategy.num_microbatches == 1
    said = "micro_batch contradicts global_batch: 8 of a replica, since 2 is that of one device"
    assert said in reading.assumed
    part = read_row({**TPU, "dp": 64.0, "tp": 8.0, "global_batch": 128.0, "micro_batch": 0.25, "grad_accum": None})
    assert part.request.strategy.micro_batch(128) == 2


def test_a_step_time_follows_from_flops_with_the_whole_score_matrix() -> None:
    row = {**TPU, "step_time_s": None, "tflops_per_gpu": 100.0}
    run = read_run(0, row)
    graph = run.request.graph
    products = 6 * 128 * (4 * (256 * 256 * 3 + 3 * 256 * 688) + 1000 * 256)
    scores = 4 * 12 * 128 * 128 * 256
    assert flops_per_sample(graph, masked=False) == pytest.approx(products + scores)
    assert flops_per_sample(graph, masked=True) == pytest.approx(products + scores * 64.5 / 128)
    assert run.seconds == pytest.approx(1024 * (products + scores) / 512 / 100e12)
    assert any("the whole score matrix" in sentence for sentence in run.assumed)
    masked = read_run(0, {**row, "notes": "causal FLOPs"}).seconds
    assert masked is not None
    assert run.seconds is not None
    assert masked < run.seconds
    before = read_run(0, {**row, "notes": "formula before causal halving"})
    assert before.seconds == run.seconds


def test_a_program_that_states_no_strategy_shards_in_its_slice() -> None:
    axes = ("dp", "tp", "pp", "zero", "micro_batch", "grad_accum", "sp")
    request = steps_request({**TPU, **dict.fromkeys(axes), "recompute": None})
    assert str(request.strategy) == "dp=512,zero=3,shard=256,recompute=full"


def test_policies_that_keep_some_projections_count_as_full_recomputation() -> None:
    reading = read_row({**TPU, "recompute": "remat_policy=qkv_proj_offloaded"})
    assert reading.request.strategy.recompute == "full"
    assert any("keeps some projections" in sentence for sentence in reading.assumed)


@pytest.mark.parametrize(
    ("framework", "runtime"),
    [("NeMo-Megatron 2.13.0", "neuronx-1"), ("NeuronX Distributed 2.16.0", "neuronx"), ("anything", "neuronx")],
)
def test_every_framework_on_trainium_runs_on_its_compiler(framework: str, runtime: str) -> None:
    request = steps_request({**CORES, "framework": framework})
    assert (request.runtime.name, request.cluster.device.name) == (runtime, "trainium1-core")


def test_a_model_that_no_device_can_hold_is_split_if_no_axis_is_stated() -> None:
    big: Row = {
        "n_layers": None,
        "hidden": None,
        "heads": None,
        "kv_heads": None,
        "ffn": None,
        "vocab": None,
        "seq": None,
    }
    row = {**CORES, **big, "model": "GPT3-46B", "params_b": 46.0, "n_gpus": 1024.0, "gpus_per_node": 32.0}
    row |= {"global_batch": 1024.0, "micro_batch": 1.0, "pp": 1.0} | dict.fromkeys(("dp", "tp", "zero", "grad_accum"))
    reading = read_row(row)
    assert reading.request.strategy.tp * reading.request.strategy.pp >= 16
    assert "n_layers, hidden, heads not stated: 57 layers of width 8192 with 64 heads" in reading.assumed
    assert reading.request.graph.tokens_per_sample == 2048


@pytest.mark.parametrize(
    ("model", "year", "attention"),
    [
        ("llama-small", "2024-08", "cudnn-8"),
        ("llama-small", "2025-05", "flash"),
        ("BERT small", "2023", "unfused"),
        ("BERT small", "2024", "cudnn-8"),
    ],
)
def test_the_year_tells_which_attention_megatron_had(model: str, year: str, attention: str) -> None:
    for framework in ("NeMo / Megatron-Core", "Megatron-LM"):
        row = {**ROW, "framework": framework, "model": model, "date": year}
        assert steps_request(row).runtime.kernels.attention == attention


def test_nemo_to_2023_handled_parameters_one_by_one() -> None:
    nemo, megatron = ({**ROW, "framework": name, "model": "BERT small"} for name in ("NeMo Megatron", "Megatron-LM"))
    found = steps_request({**nemo, "date": "2023-10"}).runtime
    assert found.launches.parameter == 2 * found.launches.operator
    assert "gradients" not in found.kernels.fusions
    assert "gradients" in steps_request({**megatron, "date": "2023-10"}).runtime.kernels.fusions
    assert steps_request({**megatron, "date": "2023-10"}).runtime.launches.parameter == 0
    assert steps_request({**nemo, "date": "2024-01"}).runtime.launches.parameter == 0


@pytest.mark.parametrize(("year", "runtime"), [("2021-05", "megatron-1"), ("2022", "megatron-2"), ("2023", "megatron")])
def test_the_year_tells_which_megatron_ran(year: str, runtime: str) -> None:
    assert steps_request({**ROW, "date": year}).runtime.name == runtime


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Gaudi (HL-205)", "gaudi1"),
        ("Gaudi2 (HL-225)", "gaudi2"),
        ("Gaudi3 (HL-325)", "gaudi3"),
        ("BI-V100 (iluvatar)", "bi-v100"),
        ("TPU v7x (Ironwood) chip", "tpu-v7x"),
        ("TPU v6e (Trillium)", "tpu-v6e"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
    ],
)
def test_tables_name_devices_of_other_makers(text: str, name: str) -> None:
    place = cluster_of({"gpu": text, "n_gpus": 8.0}, [])
    assert place.device.name == name


@pytest.mark.long(but=2)
@pytest.mark.parametrize(("billions", "stages", "shape"), [
    (116.0, 32, "64 layers of width 12288 with 96 heads"),
    (206.0, 64, "64 layers of width 16384 with 128 heads"),
    (52.0, 16, "64 layers of width 8192 with 64 heads"),
    (18.0, 8, "40 layers of width 6144 with 48 heads"),
])  # fmt: skip
def test_stages_and_parameters_tell_a_shape_that_is_not_stated(billions: float, stages: int, shape: str) -> None:
    unknown = dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab"))
    place = {"gpu": "A100 80GB", "gpus_per_node": 8.0, "n_gpus": 8.0 * stages, "framework": "Megatron-LM"}
    sizes = {"tp": 4.0, "pp": float(stages), "dp": 2.0, "micro_batch": 1.0, "grad_accum": None, "global_batch": 256.0}
    row = {**ROW, **unknown, **place, **sizes, "model": "GPT", "params_b": billions, "seq": 1024.0}
    assert f"n_layers, hidden, heads not stated: {shape}" in read_row(row).assumed


def test_parameters_tell_heads_that_are_wider_than_their_share_of_a_layer() -> None:
    scaled = {"n_layers": 4.0, "hidden": 2048.0, "heads": 32.0, "kv_heads": 32.0, "ffn": 7168.0, "vocab": 32000.0}
    body = 4 * 3 * 2048 * 7168 + 2 * 32000 * 2048
    row = {**TPU, **scaled, "model": "MaxText"}
    wide = steps_request({**row, "params_b": (body + 4 * 4 * 2048 * 32 * 128) / 1e9}).graph
    usual = steps_request({**row, "params_b": (body + 4 * 4 * 2048 * 2048) / 1e9}).graph
    assert "head_dim=128" in wide.name
    assert "head_dim" not in usual.name
    assert wide.num_parameters - usual.num_parameters == 4 * 4 * 2048 * 2048


def test_two_rates_tell_a_length_that_is_not_stated() -> None:
    row = {**TPU, "model": "Llama2-7B", "seq": None, "tokens_per_s_per_gpu": 1000.0}
    for seq in (2048, 8192):
        graph = steps_request({**TPU, **NO_SHAPE, "model": "llama2-7b", "seq": float(seq)}).graph
        rate = 1000.0 * flops_per_sample(graph, masked=False) / seq / 1e12
        reading = read_row({**row, **NO_SHAPE, "tflops_per_gpu": rate})
        assert f"sequence length not stated: {seq}" in reading.assumed
    other = read_row({**row, **NO_SHAPE, "tflops_per_gpu": 1.0})
    assert "sequence length not stated: 4096" in other.assumed
