"""Rows of a table of measured steps become requests by their own columns."""

from __future__ import annotations

import pytest

from tests.measured.asking import steps_request
from traincast import load_cluster
from traincast.measured.models.language import zoo_name
from traincast.measured.spellings import precision_name
from traincast.measured.steps import read_row, read_run, read_timed_run
from traincast.tables import Row, RowError

ROW: Row = {
    "source": "mine",
    "framework": "Megatron-LM",
    "model": "llama-small",
    "n_layers": 4.0,
    "hidden": 256.0,
    "heads": 8.0,
    "kv_heads": 4.0,
    "ffn": 688.0,
    "seq": 128.0,
    "vocab": 1000.0,
    "gpu": "H100-SXM5-80GB",
    "n_gpus": 16.0,
    "gpus_per_node": 8.0,
    "dp": 2.0,
    "tp": 4.0,
    "pp": 2.0,
    "micro_batch": 2.0,
    "grad_accum": 4.0,
    "global_batch": 16.0,
    "recompute": "full",
    "precision": "bf16",
    "zero": 1.0,
    "sp": 1.0,
    "status": "ok",
    "step_time_s": 0.05,
    "mem_gb": 3.0,
}


def test_the_number_of_nodes_tells_the_gpus_of_each() -> None:
    request = steps_request({**ROW, "n_nodes": ROW["n_gpus"] / 4, "gpus_per_node": None})
    assert (request.cluster.num_nodes, request.cluster.devices_per_node) == (ROW["n_gpus"] / 4, 4)


def test_a_row_says_model_cluster_strategy_and_batch() -> None:
    request = steps_request(ROW)
    assert request.graph.num_parameters == 2 * 1000 * 256 + 4 * (256 * 256 * 3 + 3 * 256 * 688 + 2 * 256) + 256
    assert (request.cluster.device.name, request.cluster.num_nodes) == ("h100-sxm5-80gb", 2)
    assert str(request.strategy) == (
        "dp=2,tp=4,pp=2,num_microbatches=4,schedule=1f1b,zero=1,sequence_parallel,recompute=full"
    )
    assert (request.runtime.name, request.precision.name, request.global_batch) == ("megatron", "bf16", 16)


def test_the_source_of_a_row_changes_nothing() -> None:
    assert steps_request({**ROW, "source": "another"}) == steps_request(ROW)


def test_what_a_row_leaves_open_is_the_habit_of_its_framework() -> None:
    open_row = {**ROW, "zero": None, "sp": None, "recompute": "?", "grad_accum": None}
    request = steps_request(open_row)
    assert request.strategy.zero == request.runtime.defaults.zero == 1
    assert request.strategy.sequence_parallel
    assert request.strategy.recompute == "none"
    assert request.strategy.num_microbatches == 4


def test_a_stated_parameter_count_tells_tied_tables_from_two() -> None:
    body = 4 * (256 * 256 * 3 + 3 * 256 * 688) / 1e9
    tied = steps_request({**ROW, "params_b": body + 256e-6})
    assert tied.graph.num_parameters == steps_request(ROW).graph.num_parameters - 256 * 1000


def test_a_model_whose_family_columns_cannot_describe_is_that_of_the_zoo() -> None:
    stated = {"n_layers": 48.0, "hidden": 3840.0, "heads": 16.0, "kv_heads": None, "ffn": None, "vocab": None}
    request = steps_request({**ROW, **stated, "model": "Gemma3-12B", "seq": 8192.0})
    assert request.graph.num_parameters == 11_766_034_176


def test_a_run_without_optimizer_says_so_in_its_notes() -> None:
    assert steps_request(ROW).optimizer
    assert not steps_request({**ROW, "notes": "forward and backward, no optimizer"}).optimizer


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("bf16", "bf16"),
        ("BF16", "bf16"),
        ("amp_bf16", "amp-bf16"),
        ("amp_fp16", "amp"),
        ("fp16", "fp16"),
        ("fp32", "fp32"),
        ("tf32", "tf32"),
        ("MXFP8", "fp8"),
        ("FP8-CS (FP8-MX)", "fp8"),
        ("NVFP4", "nvfp4"),
        ("", "bf16"),
    ],
)
def test_precisions_are_known_by_many_spellings(written: str, name: str) -> None:
    assert precision_name(written) == name


def test_zoo_models_are_known_by_many_spellings() -> None:
    assert zoo_name("Qwen3_30B_a3B") == "qwen3-30b-a3b"
    assert zoo_name("DeepSeekV3 (w/o MTP)") == "deepseek-v3"
    assert zoo_name("GPT OSS 120B") == "gpt-oss-120b"
    assert zoo_name("DeepSeek3-671B") == "deepseek-v3"
    assert zoo_name("DeepSeekV4 Flash") == "deepseek-v4-flash"
    assert zoo_name("Nemotron_3_Super") == "nemotron-3-super"
    assert zoo_name("Llama4-Scout-17B-16E") == "llama4-scout"
    assert zoo_name("something else") is None


@pytest.mark.parametrize(
    ("change", "strategy"),
    [
        ({"dp": None}, "dp=2,tp=4,pp=2,num_microbatches=4"),
        ({"micro_batch": None}, "dp=2,tp=4,pp=2,num_microbatches=4"),
        ({"tp": None, "sp": None, "dp": 8.0, "grad_accum": None, "global_batch": 64.0}, "dp=8,pp=2,num_microbatches=4"),
    ],
)
def test_figures_that_follow_from_others_need_not_be_stated(change: Row, strategy: str) -> None:
    assert str(steps_request({**ROW, **change}).strategy).startswith(strategy)


def test_batches_that_do_not_go_together_are_a_reason() -> None:
    with pytest.raises(RowError, match=r"dp=2, micro batch 2 and global batch 17 contradict each other"):
        steps_request({**ROW, "grad_accum": None, "global_batch": 17.0})


def test_replicas_that_share_few_sequences_split_their_tokens() -> None:
    row = {
        **ROW,
        "dp": None,
        "pp": 1.0,
        "micro_batch": None,
        "grad_accum": None,
        "global_batch": 2.0,
        "recompute": "no",
    }
    reading = read_row(row)
    assert (reading.request.strategy.dp, reading.request.strategy.cp) == (2, 2)
    assert "cp not stated: 2, since 4 replicas share 2 sequences" in reading.assumed
    assert read_row({**row, "global_batch": 16.0}).request.strategy.cp == 1


def test_a_framework_that_is_not_known_is_taken_for_the_usual_one_and_said() -> None:
    reading = read_row({**ROW, "framework": "homegrown"})
    assert reading.request.runtime.name == "megatron"
    assert "framework 'homegrown' not known: megatron" in reading.assumed


@pytest.mark.parametrize(
    ("written", "means"), [("True", "full"), ("0", "none"), ("selective", "selective"), ("?", "none")]
)
def test_recomputation_is_known_by_many_spellings(written: str, means: str) -> None:
    assert steps_request({**ROW, "recompute": written}).strategy.recompute == means


def test_devices_that_do_not_fill_their_nodes_are_spread_evenly() -> None:
    request = steps_request(
        {**ROW, "n_gpus": 12.0, "dp": 3.0, "tp": 4.0, "pp": 1.0, "grad_accum": 1.0, "global_batch": 6.0}
    )
    assert (request.cluster.num_nodes, request.cluster.devices_per_node) == (2, 6)


def test_a_run_has_its_time_its_memory_and_its_source() -> None:
    run = read_run(7, ROW)
    assert (run.index, run.source, run.seconds, run.memory_bytes, run.ran) == (7, "mine", 0.05, 3 * 2**30, True)
    assert read_timed_run(7, ROW) == run


def test_a_failed_run_has_no_time() -> None:
    failed = {**ROW, "status": "failed"}
    assert (read_run(0, failed).seconds, read_run(0, failed).ran) == (None, False)
    with pytest.raises(RowError, match="the run failed"):
        read_timed_run(0, failed)


def test_seconds_follow_from_tokens_per_second() -> None:
    row = {**ROW, "step_time_s": None, "tokens_per_s_per_gpu": 1000.0}
    for read in (read_run, read_timed_run):
        assert read(0, row).seconds == pytest.approx(16 * 128 / (1000 * 16))
    with pytest.raises(RowError, match="step_time_s is None: expected seconds above 0"):
        read_timed_run(0, {**ROW, "step_time_s": None})


def test_a_row_of_another_device_did_not_run_on_the_given_cluster() -> None:
    with pytest.raises(RowError, match="ran on h100-sxm5-80gb, but dgx-a100 has a100"):
        read_timed_run(0, ROW, cluster=load_cluster("dgx-a100"))
    assert read_timed_run(0, ROW, cluster=load_cluster("dgx-h100")).request.cluster.num_nodes == 2


MIXTURE: Row = {
    "source": "a lab",
    "framework": "Megatron-Core",
    "model": "Qwen3_30B_a3B",
    "seq": 4096,
    "gpu": "GB300",
    "n_gpus": 8,
    "gpus_per_node": 4,
    "dp": 8,
    "ep": 8,
    "micro_batch": 4,
    "global_batch": 512,
    "precision": "MXFP8",
    "step_time_s": 9.0,
}


@pytest.mark.parametrize(
    ("date", "release", "graphs"), [("26.04.01", "26.04.01", False), ("26.08", "26.08", True), ("2026", "26.06", True)]
)
def test_the_release_of_a_mixture_is_the_date_of_its_row(date: str, release: str, graphs: bool) -> None:
    reading = read_row({**MIXTURE, "date": date})
    runtime = reading.request.runtime
    assert (runtime.name, runtime.release, runtime.launches.cuda_graphs) == ("megatron-bridge", release, graphs)
    assert ("release of megatron-bridge not stated: 26.06" in reading.assumed) == (date == "2026")


def test_a_run_that_drops_tokens_has_a_capacity() -> None:
    assert read_row(MIXTURE).request.strategy.capacity == 0.0
    dropping = read_row({**MIXTURE, "model": "Qwen3_30B_a3B (tokendrop)"}).request.strategy
    assert dropping.capacity == 1.0


def test_stages_that_contradict_the_number_of_gpus_are_fewer_and_said() -> None:
    made = read_row({**ROW, "dp": None, "pp": 8.0, "grad_accum": None, "micro_batch": 1.0, "global_batch": 16.0})
    assert (made.request.strategy.tp, made.request.strategy.pp, made.request.strategy.dp) == (4, 4, 1)
    assert "pp contradicts n_gpus: 4, since 4·8·1 ranks exceed 16 GPUs" in made.assumed


def test_a_micro_batch_that_does_not_divide_the_batch_is_smaller_and_said() -> None:
    made = read_row({**ROW, "grad_accum": None, "micro_batch": 3.0, "global_batch": 16.0})
    assert made.request.strategy.micro_batch(16) == 2
    assert "micro_batch contradicts global_batch: 2, since 3 does not divide the 8 samples of a replica" in made.assumed
