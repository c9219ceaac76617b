"""What a row leaves open is read, chosen as `predict` would, or a reason to skip it; nothing is read in silence."""

from __future__ import annotations

import pytest

from tests.measured.test_steps import ROW
from traincast import load_runtime
from traincast.measured import dp_steps
from traincast.measured.calibrations import may_have_seen
from traincast.measured.spellings import precision_name
from traincast.measured.steps import read_row, read_run
from traincast.strategy import choose_micro_batch
from traincast.tables import Row, RowError

STATED: Row = {**ROW, "optimizer": "AdamW", "schedule": "1F1B", "hardware": "DGX H100"}


def assumed(**changes: object) -> tuple[str, ...]:
    return read_row({**STATED, **changes}).assumed


def test_a_row_that_states_everything_assumes_nothing() -> None:
    assert assumed() == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recompute": "?"}, "recompute not stated: none"),
        ({"recompute": "remat_policy=custom"}, "recompute 'remat_policy=custom' keeps some projections: full"),
        ({"zero": None}, "zero not stated: 1"),
        ({"sp": None}, "sp not stated: 1"),
        ({"schedule": None}, "pipeline schedule not stated: 1f1b"),
        ({"schedule": "Interleaved1F1B"}, "virtual stages not stated: 2"),
        ({"optimizer": None}, "optimizer not stated: adamw"),
        ({"optimizer": "Adafactor"}, "optimizer 'Adafactor' is not modelled: adamw"),
        ({"precision": None}, "precision not stated: bf16"),
        ({"precision": "fp8/bf16?"}, "precision 'fp8/bf16?' read as: fp8"),
        ({"hardware": None}, "network between nodes not stated: 8 × NDR InfiniBand"),
        ({"gpu": "H100", "hardware": None}, "GPU variant not stated: h100-sxm5-80gb"),
        ({"gpus_per_node": None}, "GPUs per node not stated: 8"),
        ({"vocab": None}, "vocab not stated: default of llama"),
        ({"kv_heads": None}, "kv_heads not stated: default of llama"),
        ({"heads": None, "model": "llama"}, "heads not stated: 4 layers of width 256 with 4 heads"),
        ({"seq": None}, "sequence length not stated: 4096"),
        ({"framework": None}, "framework not stated: megatron"),
        ({"framework": "MyTrainer 3"}, "framework 'MyTrainer 3' not known: megatron"),
        ({"dp": None, "cp": None}, "cp not stated: 1"),
        ({"micro_batch": None, "grad_accum": None}, "micro batch not stated: 1"),
        ({"mem_gb": None, "model": "mystery"}, "family of mystery is not known: llama"),
    ],
)
def test_each_thing_that_a_row_leaves_open_is_said(changes: Row, said: str) -> None:
    assert said in assumed(**changes)


def test_an_unstated_micro_batch_of_a_pipeline_is_the_one_that_predict_chooses() -> None:
    row = {**STATED, "pp": 4.0, "n_gpus": 32.0, "global_batch": 128.0, "micro_batch": None, "grad_accum": None}
    request = read_row(row).request
    assert request.strategy == choose_micro_batch(request)
    assert request.strategy.num_microbatches >= 4 * request.strategy.pp
    assert (
        read_row({**row, "grad_accum": 1.0}).request.strategy == request.strategy
    )  # nothing beyond the pipeline's own


def test_a_row_that_says_nothing_of_its_strategy_gets_the_one_that_predict_chooses() -> None:
    row = {k: v for k, v in STATED.items() if k not in ("dp", "tp", "pp", "zero", "micro_batch", "grad_accum")}
    reading = read_row(row)
    assert reading.request.strategy.num_ranks == 16
    assert f"strategy not stated: {reading.request.strategy}" in reading.assumed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "int5"}, "precision 'int5' is not known"),
        ({"precision": "posit16e2"}, "precision 'posit16e2' is not known"),
        ({"global_batch": None, "grad_accum": None}, "global_batch is not stated"),
        ({"global_batch": 64.0}, "accumulation 4 and global batch 64 contradict each other"),
        ({"micro_batch": "two"}, "micro_batch is 'two': expected a number"),
        ({"schedule": "waltz"}, "schedule 'waltz' is not known"),
        ({"gpu": "Ascend 910B"}, "device 'Ascend 910B' is not in the catalog"),
        ({"gpu": "Kunlun P40"}, "is not in the catalog"),
        ({"gpu": None}, "gpu is not stated"),
        ({"model": "Mixtral-99x7B"}, "mixture of experts"),
        ({"model": "llama", "active_params_b": 1.0, "params_b": 8.0}, "mixture of experts"),
        ({"params_b": 7.0}, "params_b is 7, but the stated dimensions of llama-small give 0.00"),
        ({"notes": "sharding=FULL_SHARD; cpu_offload=True"}, "host memory"),
        ({"zero": 4.0}, "zero is 4"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(changes: Row, reason: str) -> None:
    with pytest.raises(RowError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        read_row({**STATED, **changes})


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("float8", "fp8"),
        ("float8 rowwise", "fp8"),
        ("fp8-delayed", "fp8"),
        ("TE-fp8", "fp8"),
        ("mxfp8", "fp8"),
        ("NVFP4", "nvfp4"),
        ("bf16-mixed", "amp-bf16"),
        ("16-mixed", "amp"),
        ("mixed_float16", "amp"),
        ("mixed", "amp"),
        ("amp", "amp"),
        ("Autocast:BF16+FP32Optimizer", "amp-bf16"),
        ("float16", "fp16"),
        ("float32", "fp32"),
        ("32-true", "fp32"),
        ("torch.bfloat16", "bf16"),
        ("FP32 (TF32)", "tf32"),
        ("fp32 (TF32 off)", "fp32"),
        ("fp32, no TF32", "fp32"),
        ("fp32 allow_tf32=False", "fp32"),
    ],
)
def test_precisions_of_other_tables_are_not_taken_for_bf16(written: str, name: str) -> None:
    assert precision_name(written) == name


def test_yes_and_no_may_be_written_as_such() -> None:
    for yes in (True, "true", "yes", 1, "1.0"):
        assert read_row({**STATED, "sp": yes}).request.strategy.sequence_parallel
    for no in (False, "no", 0, "0"):
        assert not read_row({**STATED, "sp": no}).request.strategy.sequence_parallel


TITAN: Row = {**STATED, "framework": "PyTorch 2.6", "notes": "torch.compile", "micro_batch": None, "grad_accum": None}


def test_pytorch_stays_pytorch_whatever_groups_it_has() -> None:
    row = {**TITAN, "zero": 0.0, "global_batch": 64.0, "micro_batch": 8.0}
    assert read_row(row).request.runtime.name == "pytorch"
    sharded = read_row({**row, "zero": 3.0})
    assert sharded.request.runtime.name == "fsdp"
    assert "framework 'PyTorch 2.6' used with sharded parameters: fsdp" in sharded.assumed


def test_a_stated_stage_is_kept_in_a_pipeline_of_torchtitan_too() -> None:
    reading = read_row(
        {**TITAN, "framework": "torchtitan", "zero": 3.0, "global_batch": 64.0, "recompute": "selective"}
    )
    assert (reading.request.strategy.zero, reading.request.strategy.reshard) == (3, False)


def test_an_eager_run_of_torchtitan_fuses_less() -> None:
    compiled = read_row({**TITAN, "framework": "torchtitan"}).request.runtime
    eager = read_row({**TITAN, "framework": "torchtitan", "notes": "eager"}).request.runtime
    assert compiled == load_runtime("torchtitan")
    assert eager == load_runtime("torchtitan-eager")
    assert eager.kernels.written_out and not eager.kernels.fusions
    assert eager.launches.operator > compiled.launches.operator


@pytest.mark.parametrize(("notes", "share"), [("", 0.0), ("vanilla TP", 0.0), ("async TP", 0.8), ("2D + AsyncTP", 0.8)])
def test_torchtitan_hides_tensor_traffic_if_a_row_says_so(notes: str, share: float) -> None:
    runtime = read_row({**TITAN, "framework": "torchtitan", "notes": notes}).request.runtime
    assert runtime.exchange.overlap_tensor == share


@pytest.mark.parametrize(
    ("gpu", "hardware", "device", "limit"),
    [
        ("H100", "DGX H100", "h100-sxm5-80gb", 700.0),
        ("H100", "DGX H100, 500 W", "h100-sxm5-80gb", 500.0),
        ("H100", "DGX H100 700W", "h100-sxm5-80gb", 700.0),
        ("H100-96GB-HBM2e-500W", "H100 96GB HBM2e 500W, 400Gb/s RDMA per GPU", "h100-sxm5-96gb", 500.0),
        ("A100-SXM4-80GB", "350W", "a100-sxm4-80gb", 350.0),
    ],
)
def test_a_stated_power_is_the_limit(gpu: str, hardware: str, device: str, limit: float) -> None:
    found = read_row({**STATED, "gpu": gpu, "hardware": hardware}).request.cluster.device
    assert (found.name, found.limit_w) == (device, limit)


@pytest.mark.parametrize("framework", ["torchtitan", "PyTorch/HF"])
def test_a_stated_micro_batch_is_kept_even_if_stages_are_idle(framework: str) -> None:
    row = {**TITAN, "framework": framework, "micro_batch": 32.0, "grad_accum": 1.0, "global_batch": 64.0}
    request = read_row(row).request
    assert (request.strategy.num_microbatches, request.strategy.micro_batch(64)) == (1, 32)


def test_a_global_batch_follows_from_tokens_per_second() -> None:
    row = {**STATED, "global_batch": None, "grad_accum": None, "step_time_s": 0.5}
    row["tokens_per_s_per_gpu"] = 16 * 128 / 0.5 / 16
    assert read_row(row).request.global_batch == 16


def test_a_source_is_known_by_the_end_of_a_clusters_name() -> None:
    assert may_have_seen("a100-sxm4-80gb-megatron-deepspeed-vtrain-multi", "vtrain_multi")
    assert may_have_seen("a100-sxm4-80gb-megatron-deepspeed-vtrain-multi", "")
    assert not may_have_seen("a100-sxm4-80gb-megatron-deepspeed-vtrain-multi", "multi-lab")


DP: Row = {
    "family": "cnn",
    "model": "resnet18",
    "framework": "PyTorch",
    "container": "23.06",
    "gpu_model": "V100",
    "gpu_mem_gb": 32,
    "system": "DGX-2",
    "n_gpus": 16,
    "gpus_per_node": 16,
    "precision": "amp_fp16",
    "layout": "NHWC",
    "batch_per_gpu": 32,
    "grad_accum": 1,
    "input_resolution": "224x224",
    "optimizer": "sgd",
    "step_time_s": 0.04,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grad_accum": None}, "accumulation not stated: one microbatch compared"),
        ({"container": None}, "release of PyTorch not stated: 2"),
        ({"framework": "Caffe"}, "framework 'Caffe' not known: pytorch"),
        ({"framework": "TensorFlow2"}, "XLA not stated: off"),
        ({"system": None}, "GPU variant not stated: v100-sxm2-32gb"),
        ({"input_resolution": None}, "size of inputs not stated: 224"),
        ({"input_resolution": "224x320"}, "size of inputs '224x320' cannot be read: 224"),
        ({"precision": None}, "precision not stated: amp"),
        (
            {"precision": "bf16"},
            "v100-sxm3-32gb has no bf16: its products run at the rate of fp32; fp16 has a rate of its own",
        ),
        ({"model": "quartznet-10x5"}, "model 'quartznet-10x5' is not in the zoo: quartznet-15x5"),
        ({"flag": "inconsistent_batch"}, "the table flags this row: inconsistent_batch"),
        ({"global_batch": 500}, "global_batch contradicts batch_per_gpu: 512 instead of 500"),
        ({"optimizer": None}, "optimizer not stated: sgd"),
        ({"layout": None}, "layout of images not stated: channels first, as by default"),
    ],
)
def test_data_parallel_rows_say_what_they_leave_open(changes: Row, said: str) -> None:
    assert dp_steps.read_row(DP).assumed == ()
    assert said in dp_steps.read_row({**DP, **changes}).assumed


def test_the_side_of_images_is_read_whatever_a_family_calls_it() -> None:
    row = {**DP, "model": "vit-base", "input_resolution": "384x384"}
    assert (
        dp_steps.read_row(row).request.graph.num_parameters
        > dp_steps.read_row({**DP, "model": "vit-base"}).request.graph.num_parameters
    )


@pytest.mark.parametrize(("pp", "found"), [(1, 32), (2, None)])
def test_accumulation_that_is_not_stated_is_none_without_a_pipeline_and_unknown_with_one(
    pp: int, found: int | None
) -> None:
    row = {
        "source": "mine", "framework": "Megatron-LM", "model": "gpt", "n_layers": 4, "hidden": 256, "heads": 8,
        "seq": 128, "gpu": "A100", "n_gpus": 8 * pp, "gpus_per_node": 8, "dp": 8, "tp": 1, "pp": pp, "micro_batch": 4,
        "step_time_s": 0.01,
    }  # fmt: skip
    if found is None:
        with pytest.raises(RowError, match="global_batch is not stated"):
            read_row(row)
        return
    reading = read_row(row)
    assert reading.request.global_batch == found
    assert "gradient accumulation not stated: none" in reading.assumed


RECIPE: Row = {
    **STATED, "framework": "NeMo / Megatron-Core", "schedule": None, "vp": None, "n_layers": 8.0, "pp": 4.0, "tp": 2.0,
    "dp": 2.0, "n_gpus": 16.0, "micro_batch": 1.0, "grad_accum": None, "mem_gb": None,
}  # fmt: skip


def test_recipes_that_would_wait_for_a_quarter_of_their_step_are_taken_to_interleave_their_stages() -> None:
    run = read_run(0, {**RECIPE, "global_batch": 16.0})  # 8 microbatches: 3 of 11 slots wait
    assert (run.request.strategy.virtual_stages, run.request.strategy.schedule) == (2, "interleaved")
    assert "virtual stages not stated: 2, since without them 27% of the step would be bubble" in run.assumed
    assert [(one.strategy.virtual_stages, one.strategy.schedule) for one in run.others] == [(1, "1f1b")]


def test_shorter_bubbles_are_read_as_1f1b_and_the_other_reading_is_kept() -> None:
    run = read_run(0, {**RECIPE, "global_batch": 64.0})
    assert (run.request.strategy.virtual_stages, run.request.strategy.schedule) == (1, "1f1b")
    assert [one.strategy.virtual_stages for one in run.others] == [2]


@pytest.mark.parametrize("stated", [{"vp": 1.0}, {"schedule": "1F1B"}, {"framework": "Megatron-DeepSpeed"}])
def test_what_a_row_states_of_its_pipeline_always_stands(stated: Row) -> None:
    run = read_run(0, {**RECIPE, "global_batch": 16.0, **stated})
    assert (run.request.strategy.virtual_stages, run.request.strategy.schedule) == (1, "1f1b")
    assert run.others == ()
