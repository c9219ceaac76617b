"""What a row states is what is forecast: every column of every kind of table, and rows that contradict themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.stated import Count, count_row

from traincast.measured import Reading, dp_steps, steps
from traincast.measured.stated import ReplacedError, check_stated, replaced
from traincast.measured.tuning import rows as finetune
from traincast.tables import Row, RowError

STEPS: Row = {
    "source": "mine",
    "framework": "Megatron-LM",
    "model": "llama-small",
    "n_layers": 4,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 688,
    "seq": 128,
    "vocab": 1000,
    "gpu": "H100-SXM5-80GB",
    "n_gpus": 16,
    "gpus_per_node": 8,
    "dp": 2,
    "tp": 4,
    "pp": 2,
    "cp": 1,
    "ep": 1,
    "vp": 1,
    "micro_batch": 2,
    "grad_accum": 4,
    "global_batch": 16,
    "recompute": "full",
    "precision": "bf16",
    "zero": 1,
    "sp": 1,
    "schedule": "1f1b",
    "step_time_s": 0.05,
}
DP: Row = {
    "family": "cnn",
    "model": "resnet18",
    "framework": "PyTorch",
    "container": "23.06",
    "gpu_model": "A100-SXM4-40GB",
    "n_gpus": 16,
    "n_nodes": 2,
    "gpus_per_node": 8,
    "precision": "amp",
    "batch_per_gpu": 32,
    "grad_accum": 1,
    "global_batch": 512,
    "input_resolution": "224x224",
    "step_time_s": 0.04,
}
TUNED: Row = {
    "source": "mine",
    "framework": "HF Trainer",
    "model": "llama-small",
    "n_layers": 4,
    "hidden": 256,
    "heads": 8,
    "ffn": 688,
    "vocab": 1000,
    "method": "lora",
    "gpu": "A100-80GB",
    "n_gpus": 4,
    "dp": 4,
    "seq": 128,
    "micro_batch": 2,
    "grad_accum": 2,
    "global_batch": 16,
    "precision": "bf16",
    "zero": 0,
    "recompute": "none",
    "step_time_s": 0.1,
}
PIPELINE: Row = {"dp": 1, "tp": 1, "pp": 4, "n_gpus": 4, "sp": None, "micro_batch": 16, "grad_accum": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *({"framework": name, **PIPELINE} for name in ("PyTorch/HF", "PyTorch", "torchtitan", "FSDP2", "Megatron-LM")),
        *(
            {"framework": name}
            for name in ("NeMo", "nanotron", "DeepSpeed ZeRO", "PyTorch FSDP", "MaxText", "unheard-of")
        ),
        *({"zero": stage} for stage in (0, 1, 2)),
        *({"zero": stage, "framework": "torchtitan"} for stage in (0, 3)),
        *({"recompute": name} for name in ("none", "full", "selective", "remat_policy=full", "selective_per_op")),
        *({"precision": name} for name in ("bf16", "fp16", "fp32", "tf32", "fp8", "amp_bf16")),
        {"sp": 0},
        {"vp": 2, "schedule": "interleaved"},
        {"schedule": "gpipe"},
        {"cp": 2, "dp": 1, "grad_accum": 8},
        {"n_gpus": 4, "dp": 1, "tp": 2, "grad_accum": 8},  # half of a node
        {"grad_accum": None},
        {"micro_batch": None},
        {"model": "mixtral-8x7b", "vocab": 32768, "hidden": 4096, "heads": 32, "ffn": 14336, "kv_heads": 8},
        {
            "model": "DeepSeek-V3",
            "n_layers": 4,
            "hidden": None,
            "heads": None,
            "ffn": 2048,
            "kv_heads": 128,
            "vocab": 5000,
        },
        {"model": "Yi-34B", "n_layers": 4, "hidden": 1792, "heads": None, "ffn": 5120, "kv_heads": None, "vocab": None},
        {"strategy": "dp=2,tp=4,pp=2"},
        {"strategy": "dp=2,tp=4,pp=2,zero=1,micro_batch=2,sp"},
        {"notes": "FSDP 2, CP 1", "framework": "torchtitan", "zero": 3, "pp": 1, "tp": 8},
    ],
)
def test_a_request_has_every_value_that_a_row_of_steps_states(changes: Row) -> None:
    row = {**STEPS, **changes}
    reading = steps.read_row(row)
    assert list(replaced(row, reading.request)) == []
    assert not any("contradict" in sentence for sentence in reading.assumed)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *({"precision": name} for name in ("fp32", "tf32", "fp16", "bf16", "amp_bf16")),
        {"grad_accum": 4, "global_batch": 2048},
        {"gpus_per_node": 4, "n_nodes": 4},
        {"gpus_per_node": None},
        {"model": "bert-base", "seq_len": 128, "input_resolution": None},
        {"framework": "TensorFlow2", "xla": "yes"},
        {"framework": "MXNet"},
    ],
)
def test_a_request_has_every_value_that_a_row_of_data_parallel_steps_states(changes: Row) -> None:
    row = {**DP, **changes}
    assert list(replaced(row, dp_steps.read_row(row).request)) == []


@pytest.mark.long(but=3)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"zero": 3},
        {"recompute": "full"},
        {"precision": "fp16"},
        {"dp": 2, "tp": 2, "framework": "NeMo", "grad_accum": 4},
        {"method": "full"},
        {"framework": "torchtune", "zero": 2},
        {"dp": None, "global_batch": None},
        {"dp": None, "global_batch": None, "tp": 2, "framework": "NeMo"},
    ],
)
def test_a_request_has_every_value_that_a_row_of_fine_tuning_states(changes: Row) -> None:
    row = {**TUNED, **changes}
    assert list(replaced(row, finetune.read_tuning(0, row).run.request)) == []


def test_devices_whose_use_is_not_stated_are_replicas() -> None:
    run = finetune.read_tuning(0, {**TUNED, "dp": None, "global_batch": None}).run
    assert (run.request.strategy.dp, run.request.strategy.cp, run.request.global_batch) == (4, 1, 16)


def test_a_container_with_tensor_groups_says_which_program_it_is_taken_for() -> None:
    row = {**TUNED, "framework": "PyTorch NVIDIA Release 23.09", "dp": 2, "tp": 2, "grad_accum": 4}
    run = finetune.read_tuning(0, row).run
    assert run.request.runtime.name == "megatron-bridge"
    assert f"framework {row['framework']!r} is a container, whose program with tp, pp or cp is: NeMo" in run.assumed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dp": None, "pp": 8, "grad_accum": None}, "pp contradicts n_gpus"),
        ({"grad_accum": None, "micro_batch": 3}, "micro_batch contradicts global_batch"),
        ({"grad_accum": 1, "dp": 4, "pp": 1, "micro_batch": 1}, "micro_batch contradicts global_batch"),
        ({"pp": 1, "dp": 4, "vp": 2, "grad_accum": 2}, "vp contradicts pp"),
        ({"n_gpus": 12, "dp": 3, "pp": 1, "global_batch": 24}, "gpus_per_node contradicts n_gpus"),
        ({"recompute": "remat_policy=custom"}, "recompute 'remat_policy=custom' keeps some projections"),
        ({"model": "MPT-small"}, "kv_heads 4 is not modelled in mpt"),
    ],
)
def test_a_row_that_contradicts_itself_says_what_was_taken(changes: Row, said: str) -> None:
    row = {**STEPS, **changes}
    reading = steps.read_row(row)
    assert said in [sentence.partition(":")[0] for sentence in reading.assumed]
    assert check_stated(row, reading) is reading


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"global_batch": 24, "grad_accum": 4}, "contradict each other"),
        ({"strategy": "dp=2,tp=4,pp=2", "dp": 4}, r"dp is 4\S* in the row, but would be forecast as 2"),
        ({"strategy": "dp=2,tp=4,pp=2", "micro_batch": 4}, "grad_accum is 4"),
        ({"n_nodes": 4}, "n_gpus=16, n_nodes=4 and 8 GPUs per node contradict each other"),
        ({"model": "DeepSeek-V3", "ffn": 12345}, "ffn is 12345"),
    ],
)
def test_a_row_that_cannot_be_repeated_as_stated_is_refused(changes: Row, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        steps.read_row({**STEPS, **changes})


def test_counts_of_nodes_that_contradict_the_devices_are_refused() -> None:
    with pytest.raises(RowError, match="n_gpus=16, n_nodes=4 and 8 GPUs per node contradict each other"):
        dp_steps.read_row({**DP, "n_nodes": 4})


def test_a_replaced_value_is_found_and_refused_unless_a_sentence_says_why() -> None:
    request = steps.read_row(STEPS).request
    other = replace(request, strategy=replace(request.strategy, num_microbatches=8, recompute="none", zero=0))
    found = {item.column: (item.stated, item.read) for item in replaced(STEPS, other)}
    assert found == {"micro_batch": (2, 1), "grad_accum": (4, 8), "recompute": ("full", "none"), "zero": (1, 0)}
    with pytest.raises(ReplacedError, match=r"is 2\.0 in the row, but would be forecast as 1"):
        check_stated(STEPS, Reading(request=other))
    with pytest.raises(ReplacedError):
        check_stated(STEPS, Reading(request=other, assumed=("micro_batch not stated: 1",)))
    sentences = tuple(f"{column} contradicts the row: ..." for column in found)
    check_stated(STEPS, Reading(request=other, assumed=sentences))


def test_a_study_counts_replaced_values_with_and_without_a_reason() -> None:
    count = Count()
    for changes in (
        {},
        {"grad_accum": None, "micro_batch": 3},
        {"strategy": "dp=2,tp=4,pp=2", "dp": 4},
        {"gpu": "none"},
    ):
        count_row({**STEPS, **changes}, steps.read_row, count)
    assert (count.rows, count.refused, count.overridden) == (4, 1, 1)
    assert count.said == {"micro_batch contradicts global_batch": 1}
    request = steps.read_row(STEPS).request
    count_row({**STEPS, "zero": 3}, lambda row: Reading(request=request), count)
    assert count.overridden == 2


def test_degrees_that_are_left_open_are_chosen_around_those_that_are_stated() -> None:
    large = {
        **STEPS,
        "model": "gpt-large",
        "n_layers": 8,
        "hidden": 16384,
        "heads": 128,
        "kv_heads": None,
        "ffn": 65536,
    }
    left = dict.fromkeys(("dp", "tp", "cp", "vp", "zero", "sp", "grad_accum", "schedule"))
    row = {**large, **left, "gpu": "V100-32GB", "precision": "fp16", "pp": 1, "micro_batch": 1, "global_batch": 16}
    reading = steps.read_row(row)
    strategy = reading.request.strategy
    assert (strategy.pp, strategy.micro_batch(16)) == (1, 1)
    assert strategy.tp > 1
    assert any(sentence.startswith(f"tp not stated: {strategy.tp}, because") for sentence in reading.assumed)
    nothing = {**row, "pp": None, "micro_batch": None, "recompute": "selective"}
    assert steps.read_row(nothing).request.strategy.recompute == "selective"


def test_notes_that_deny_an_optimizer_leave_it_out_of_every_kind_of_step() -> None:
    note = "forward, loss, backward; NO optimizer step"
    assert not dp_steps.read_row({**DP, "notes": note}).request.optimizer
    assert not steps.read_row({**STEPS, "notes": note}).request.optimizer
    for other in ("no optimizer offload", "no optimizer_in_bwd"):
        assert dp_steps.read_row({**DP, "notes": other}).request.optimizer


def test_what_notes_deny_is_not_read_as_said() -> None:
    for notes, recompute in (("gradient checkpointing", "full"), ("no gradient checkpointing", "none")):
        assert dp_steps.read_row({**DP, "notes": notes}).request.strategy.recompute == recompute
    left = {**STEPS, "framework": "PyTorch", "zero": None, "pp": 1, "grad_accum": None, "tp": 8}
    for notes, name in (("FSDP over all ranks", "fsdp"), ("no FSDP", "pytorch"), ("use_fsdp=False", "pytorch")):
        assert steps.read_row({**left, "notes": notes}).request.runtime.name == name
    for notes, written_out in (("Liger kernels", False), ("without Liger kernels", True)):
        assert finetune.read_tuning(0, {**TUNED, "notes": notes}).run.request.runtime.kernels.written_out is written_out


def test_fp32_multiplies_in_tf32_only_if_the_row_does_not_deny_it() -> None:
    taken = dp_steps.read_row({**DP, "precision": "fp32"})
    assert taken.request.precision.name == "tf32"
    assert "TF32 for products of fp32 not stated: on, as by default" in taken.assumed
    for denied in ({"precision": "fp32 (TF32 off)"}, {"precision": "fp32", "notes": "allow_tf32=False"}):
        assert dp_steps.read_row({**DP, **denied}).request.precision.name == "fp32"


def test_states_are_sharded_by_the_context_groups_of_all_replicas() -> None:
    row = {**STEPS, "framework": "torchtitan", "dp": 2, "cp": 4, "tp": 2, "pp": 1, "zero": 3, "grad_accum": None}
    assert steps.read_row({**row, "notes": "FSDP 2, CP 4"}).request.strategy.shard == 0
    assert steps.read_row({**row, "notes": "FSDP 4"}).request.strategy.shard == 4


def test_a_stated_memory_is_kept_if_the_catalog_has_no_such_device() -> None:
    reading = steps.read_row({**STEPS, "gpu": "H100-64GB-500W"})
    assert reading.request.cluster.device.memory_bytes == 64 * 1024**3
    assert "h100-sxm5-80gb has another memory in the catalog: 64 GiB as stated" in reading.assumed
    assert steps.read_row({**STEPS, "gpu": "GH200 480GB"}).request.cluster.device.memory_bytes < 110e9
