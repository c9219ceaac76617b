"""Rows of fine-tuning runs become requests: methods, targets, quantisation, lengths and kinds of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from traincast.measured.memory import memory_of
from traincast.measured.steps import read_row
from traincast.measured.tuning.graph import extra_tokens
from traincast.measured.tuning.rows import read_tuning, start_up
from traincast.measured.tuning.words import Tuning, trains_adapters, tuning_of
from traincast.strategy import lower
from traincast.strategy.prepare import kept_precision
from traincast.tables import RowError
from traincast.units import GIB

ROW: dict[str, Any] = {
    "source": "test",
    "framework": "HF Trainer",
    "model": "org/tiny-llama-hf",
    "n_layers": 4,
    "hidden": 256,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 512,
    "vocab": 1000,
    "method": "lora",
    "lora_rank": 8,
    "lora_targets": "q_proj+v_proj",
    "gpu": "NVIDIA A100-80GB",
    "n_gpus": 1,
    "dp": 1,
    "zero": 0,
    "seq": 128,
    "micro_batch": 2,
    "grad_accum": 1,
    "global_batch": 2,
    "recompute": "no",
    "precision": "bfloat16",
    "optimizer": "AdamW",
    "step_time_s": 0.1,
    "mem_gb": 1.0,
    "mem_kind": "allocated",
    "mem_unit": "GiB",
    "judge_time": True,
    "judge_memory": True,
}
WEIGHTS = 4 * (256 * 256 * 3 + 3 * 256 * 512 + 2 * 256) + 2 * 1000 * 256 + 256
"""Weights of the model above, whose keys and values have half the width."""


def read(**changes: Any) -> Any:
    return read_tuning(0, ROW | changes)


def test_lora_trains_two_matrices_per_target_and_freezes_the_rest() -> None:
    graph = read().run.request.graph
    assert graph.num_trainable_parameters == 4 * 8 * ((256 + 256) + (256 + 128))
    assert graph.num_parameters - graph.num_trainable_parameters == WEIGHTS


def test_full_training_in_16_bits_holds_five_copies_in_the_update() -> None:
    """Weights, gradients, two states, and the square root of the second state that a foreach update takes."""
    found = read(
        method="full", lora_rank=None, lora_targets=None, recompute="yes", seq=8, micro_batch=1, global_batch=1
    )
    runtime = found.longest.runtime.patched(memory={"workspace_bytes": 0.0})
    memory = lower(replace(found.longest, runtime=runtime)).memory[0]
    assert memory.tensors == pytest.approx(5 * 2 * WEIGHTS, rel=1e-3)


def test_gradients_do_not_exist_in_the_loss_unless_they_are_accumulated() -> None:
    changes = {"method": "full", "lora_rank": None, "lora_targets": None, "seq": 4096}
    once = lower(read(**changes).longest).memory[0]
    twice = lower(read(**changes, grad_accum=2, global_batch=4).longest).memory[0]
    assert twice.tensors - once.tensors == pytest.approx(2 * WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "method", "quantize"),
    [
        ({"method": "full"}, "full", ""),
        ({"method": "qlora4", "quant_bits": 4}, "lora", "nf4"),
        ({"method": "qlora4", "quant_bits": 4, "notes": "quantization bnb.nf4"}, "lora", "nf4-single"),
        ({"method": "qlora4", "quant_bits": 4, "notes": "quantization bnb.nf4-dq"}, "lora", "nf4"),
        ({"method": "qlora4", "quant_bits": 4, "model": "x/y-GPTQ"}, "lora", "gptq"),
        ({"method": "qlora8", "quant_bits": 8}, "lora", "int8"),
        ({"method": "qlora"}, "lora", "nf4"),
        ({"method": "DoRA"}, "dora", ""),
    ],
)
def test_methods_and_formats_of_weights(changes: dict[str, Any], method: str, quantize: str) -> None:
    found = tuning_of(ROW | changes)
    assert (found.method, found.quantize) == (method, quantize)


def test_three_bits_are_refused() -> None:
    with pytest.raises(RowError, match="quant_bits is 3: expected 4 or 8"):
        tuning_of(ROW | {"quant_bits": 3})


@pytest.mark.parametrize(
    ("written", "targets"),
    [
        ("q_proj+v_proj", ("q", "v")),
        ("q+v", ("q", "v")),
        ("default (qkv: c_attn / query_key_value / q,k,v)", ("qkv", "q", "k", "v")),
        ("linear_qkv+linear_proj (MLPerf reference: q,k,v,o)", ("qkv", "o")),
        ("all linear", ("all",)),
        ("down_proj+gate_proj+up_proj", ("down", "gate", "up")),
        ("default", ()),
    ],
)
def test_targets_are_words_of_fine_tuning(written: str, targets: tuple[str, ...]) -> None:
    assert tuning_of(ROW | {"lora_targets": written}).targets == targets


def test_an_unknown_method_is_lora_with_the_stated_number_of_parameters() -> None:
    found = read(method="newora", lora_rank=None, trainable_params=28_672.0)
    assert found.run.request.graph.num_trainable_parameters == 28_672
    assert "method 'newora' not known: LoRA with the trained parameters that the row states" in found.run.assumed


def test_a_method_that_makes_a_weight_runs_its_product_and_keeps_it() -> None:
    plain, made = read(), read(method="loha", lora_rank=None, trainable_params=28_672.0)
    extra = lower(made.longest).memory[0].activations - lower(plain.longest).memory[0].activations
    assert extra == pytest.approx(4 * 4 * (256 * 256 + 256 * 128), rel=0.2)
    assert made.run.request.graph.flops() - plain.run.request.graph.flops() > 3 * 2 * 128 * 4 * (256 * 384)


def test_a_prompt_lengthens_the_sequence_and_trains_only_its_tokens() -> None:
    row = ROW | {
        "method": "prompt_tuning",
        "lora_rank": None,
        "lora_targets": "default",
        "trainable_params": 50 * 256.0,
    }
    assert extra_tokens(row, tuning_of(row)) == 50
    found = read_tuning(0, row)
    assert found.run.request.graph.tokens_per_sample == 178
    assert found.run.request.graph.num_trainable_parameters == 50 * 256


def test_time_depends_on_the_mean_length_and_memory_on_the_longest() -> None:
    found = read(
        avg_tokens_per_step=100.0,
        notes="batches padded to longest, tokens counted exclude padding",
        mem_other_gb=2.0,
        mem_other_kind="reserved 99th pct of train steps",
    )
    assert found.run.request.graph.tokens_per_sample == 54
    assert found.longest.graph.tokens_per_sample == 116
    assert (found.run.memory_bytes, found.kind, found.batches) == (2.0 * GIB, "reserved", ((1.0,),))


@pytest.mark.parametrize(
    ("changes", "kind", "nbytes"),
    [
        ({}, "allocated", GIB),
        ({"mem_kind": "unknown"}, "", GIB),
        ({"mem_kind": "nvidia-smi avg over GPUs", "mem_unit": "GB (1e9)"}, "nvidia-smi", 1e9),
        ({"mem_kind": "max_memory_reserved", "mem_unit": "MiB"}, "reserved", GIB / 1024),
    ],
)
def test_memory_is_of_the_kind_that_the_row_states(changes: dict[str, Any], kind: str, nbytes: float) -> None:
    found = memory_of(ROW | changes)
    assert found is not None
    assert (found.kind, found.nbytes) == (kind, nbytes)


def test_columns_say_what_may_be_judged() -> None:
    assert read(judge_time=False).run.seconds is None
    assert read(judge_memory=False).run.memory_bytes is None
    with pytest.raises(RowError, match="neither a time nor a memory is stated"):
        read(judge_time=False, judge_memory=False)


def test_weights_of_fsdp_with_mixed_precision_are_fp32_and_those_of_one_gpu_are_not() -> None:
    full = {"method": "full", "lora_rank": None, "lora_targets": None, "precision": "bfloat16 (bf16 autocast)"}
    alone = read(**full).run.request
    spread = read(**full, n_gpus=2, dp=2, zero=3, global_batch=4).run.request
    assert kept_precision(alone).weights.nbytes == 2
    assert kept_precision(spread).weights.nbytes == 4


def test_fsdp_keeps_inputs_of_frozen_layers_twice() -> None:
    assert read(n_gpus=2, dp=2, zero=3, global_batch=4, recompute="yes").run.request.runtime.memory.kept_inputs == 2.0
    assert read().run.request.runtime.memory.kept_inputs == 1.0


def test_before_2024_fsdp_leaves_frozen_parameters_gathered() -> None:
    spread = {"n_gpus": 2, "dp": 2, "zero": 3, "global_batch": 4}
    assert not read(**spread, date="2023-10-20").run.request.strategy.reshard
    assert read(**spread, date="2024-12-03").run.request.strategy.reshard


def test_the_start_of_a_short_run_is_part_of_its_mean_step() -> None:
    assert start_up(ROW | {"num_steps": 100, "train_time_s": 10.0}) == pytest.approx(0.02)
    assert start_up(ROW | {"num_steps": 5000, "train_time_s": 500.0}) == 0.0
    assert start_up(ROW | {"num_steps": 100, "train_time_s": 60.0}) == 0.0


@pytest.mark.parametrize(
    ("changes", "adapters"),
    [
        ({"model": "LLAMA2-13B LoRA"}, True),
        ({"notes": "Archive > LoRA Performance > Model"}, True),
        ({"method": "qlora4"}, True),
        ({"lora_rank": 16}, True),
        ({"notes": "SFT; LoRA rank/targets not in table"}, False),
        ({"model": "explorative-7b"}, False),
        ({}, False),
    ],
)
def test_a_row_of_steps_trains_adapters_if_any_column_says_so(changes: dict[str, Any], adapters: bool) -> None:
    assert trains_adapters({"model": "llama", "notes": ""} | changes) is adapters


def test_a_row_of_steps_with_adapters_trains_only_them() -> None:
    row = {k: v for k, v in ROW.items() if not k.startswith(("lora", "method"))} | {"model": "tiny llama LoRA"}
    reading = read_row(row | {"framework": "NeMo"})
    assert reading.request.graph.num_trainable_parameters == 4 * 16 * (256 + 512)
    assert "adapted layers not stated: qkv" in reading.assumed
    assert "rank of the adapters not stated: 16" in reading.assumed
    full = read_row(row | {"model": "tiny llama"})
    assert full.request.graph.num_trainable_parameters == WEIGHTS


def test_a_default_tuning_is_full() -> None:
    assert tuning_of({"method": ""}) == Tuning(method="full")


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("AdamW", 2 * 4.0), ("adamw_bnb_8bit", 2 * (1 + 4 / 256)), ("SGD with momentum", 4.0), ("SGD", 0.0)],
)
def test_states_follow_the_optimizer_that_the_row_states(written: str, nbytes: float) -> None:
    memory = lower(read(optimizer=written).longest).memory[0]
    assert memory.parts.get("optimizer states", 0.0) == pytest.approx(nbytes * 4 * 8 * (512 + 384))


def test_a_row_may_keep_activations_on_the_host() -> None:
    assert read(offload="activations").run.request.strategy.offload == ("activations",)
    assert read(offload="no").run.request.strategy.offload == ()
    with pytest.raises(RowError, match="only optimizer and activations are modelled"):
        read(offload="to tape")


def test_litgpt_and_trainers_drop_inputs_of_adapters_and_keep_their_copies_and_masks() -> None:
    plain, trainer, litgpt = (read(framework=name).run.request for name in ("torchtune", "HF Trainer", "litgpt"))
    kept = [[op.name for op in r.graph.operators].count("native_dropout") for r in (plain, trainer, litgpt)]
    adapters = 2 * len([b for b in litgpt.graph.blocks if b.repeated])
    assert kept == [0, adapters, adapters]
    masks = [t for op in litgpt.graph.operators if op.name == "native_dropout" for t in op.saved]
    assert {t.dtype.nbytes for t in masks} == {1}
    assert {t.shape[-1] for t in masks} == {256}


@pytest.mark.parametrize(
    ("name", "rotary"), [("StableLM Alpha 3 B", True), ("phi-1.5 1.3 B", True), ("GPT 1 B", False)]
)
def test_relatives_of_neox_have_rotary_positions_and_their_own_output_projection(name: str, rotary: bool) -> None:
    request = read(model=name, method="full", kv_heads=4, ffn=1024).run.request
    scopes = {op.scope for op in request.graph.operators}
    assert ("embedding.positions" in scopes) is not rotary
    layers = 4 * (12 * 256 * 256 + 13 * 256) + 2 * 256
    assert request.graph.num_parameters == layers + (2 * 1000 if rotary else 1000 + 128) * 256
