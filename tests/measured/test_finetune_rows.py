"""Rows of fine-tuning are read as many sources spell them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.measured.test_finetune import ROW, read
from traincast.graph.zoo.known_models import known_model
from traincast.measured.tuning.rows import as_steps, completed, model_name
from traincast.measured.tuning.words import tuning_of
from traincast.strategy.prepare import memory_by_stage, prepare


@pytest.mark.parametrize(
    ("written", "method", "stored"),
    [
        ("LoRA", "lora", ""),
        ("QLoRA (nf4)", "lora", "nf4"),
        ("QLoRA-4bit", "lora", "nf4"),
        ("8-bit LoRA", "lora", "int8"),
        ("lora 8bit", "lora", "int8"),
        ("qlora8", "lora", "int8"),
        ("LoRA+", "lora", ""),
        ("longlora", "lora", ""),
        ("QDoRA", "dora", "nf4"),
        ("full-ft", "full", ""),
        ("Full finetuning", "full", ""),
        ("GaLore", "full", ""),
        ("(IA)^3", "ia3", ""),
        ("prefix-tuning", "prefix_tuning", ""),
        ("p-tuning v2", "p_tuning", ""),
        ("adaption_prompt", "adaption_prompt", ""),
        ("adapter_v2", "adaption_prompt", ""),
        ("adalora", "adalora", ""),
        ("freeze", "freeze", ""),
    ],
)
def test_methods_and_formats_of_weights_by_their_spellings(written: str, method: str, stored: str) -> None:
    found = tuning_of({"method": written})
    assert (found.method, found.quantize) == (method, stored)


@pytest.mark.parametrize(
    ("column", "written", "read_as"),
    [
        ("zero", "ZeRO-3", 3),
        ("zero", "stage 2", 2),
        ("zero", "fsdp2", 3),
        ("zero", "none", 0),
        ("zero", "distributed optimizer (unstated)", 1),
        ("recompute", "gradient_checkpointing", "full"),
        ("recompute", "unsloth", "full"),
        ("recompute", "disabled", "none"),
        ("recompute", "selective", "selective"),
        ("precision", "nf4 (double quant), bf16 compute", "bf16"),
        ("precision", "4-bit", ""),
        ("precision", "bf16-mixed", "bf16-mixed"),
        ("framework", "SomeTrainer 1.0", "HF Trainer"),
        ("framework", "DeepSpeed", "HF Trainer"),
    ],
)
def test_settings_by_their_spellings(column: str, written: str, read_as: Any) -> None:
    assert as_steps(ROW | {column: written}, 128, [])[column] == read_as


def test_a_row_without_length_and_batch_gets_usual_ones_and_says_so() -> None:
    assumed: list[str] = []
    row = completed(
        {**ROW, "seq": float("nan"), "micro_batch": None, "global_batch": 8, "dp": 2, "grad_accum": 2}, assumed
    )
    assert (row["seq"], row["micro_batch"]) == (2048, 2)
    assert assumed == ["sequence length not stated: 2048", "batch of a GPU not stated: 2"]


@pytest.mark.parametrize(
    ("written", "spec"),
    [
        (
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
            "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256",
        ),
        ("unsloth/llama-3.1-8b-bnb-4bit", "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"),
        ("facebook/opt-13b", "gpt:layers=40,hidden=5120,heads=40,ffn=20480,vocab=50272"),
        ("facebook/opt-1.3b", "gpt:layers=24,hidden=2048,heads=32,ffn=8192,vocab=50272"),
        ("Qwen/Qwen2.5-7B-Instruct", "llama:layers=28,hidden=3584,heads=28,kv_heads=4,ffn=18944,vocab=152064"),
        ("tiiuae/falcon-7b", "gpt:layers=32,hidden=4544,heads=71,kv_heads=1,ffn=18176,vocab=65024"),
        ("google/flan-t5-xxl", "t5-v1.1-xxl"),
        ("t5-base", "t5-base"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ],
)
def test_well_known_models_need_no_dimensions(written: str, spec: str) -> None:
    assert model_name({"model": written}).rpartition(",tied")[0] == spec or model_name({"model": written}) == spec


def test_stated_dimensions_count_more_than_a_name() -> None:
    row = {"model": "facebook/opt-13b", "n_layers": 2.0, "hidden": 64.0, "heads": 2.0}
    assert model_name(row) == "opt-13b"
    assert known_model("no-such-model") is None


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 8.03), ("qwen2.5-0.5b", 0.494), ("yi-34b", 34.4), ("phi-3-mini", 3.82), ("baichuan2-7b", 7.51)],
)
def test_dimensions_of_llamas_give_the_published_number_of_parameters(name: str, billions: float) -> None:
    spec = known_model(name)
    assert spec is not None
    family, _, said = spec.partition(":")
    found = {key: int(value) for key, _, value in (part.partition("=") for part in said.split(",")) if value.isdigit()}
    hidden, share = found["hidden"], found["kv_heads"] / found["heads"]
    layer = hidden * hidden * (2 + 2 * share) + 3 * hidden * found["ffn"]
    tables = 1 if "tied=true" in said else 2
    assert family == "llama"
    assert (found["layers"] * layer + tables * found["vocab"] * hidden) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ("paged_adamw_32bit", 8.0),
        ("adamw_bnb_8bit", 2.0 * (1 + 4 / 256)),
        ("lion", 2.0),
        ("adafactor", 0.0),
        ("sgd", 0.0),
        ("galore_adamw", 0.0),
    ],
)
def test_optimizers_have_the_states_that_they_keep(optimizer: str, states: float) -> None:
    full = {"method": "full", "lora_rank": None, "lora_targets": None, "precision": "bf16"}
    request = read(**full, optimizer=optimizer).longest
    found = memory_by_stage(request, prepare(request))[0]
    expected = states / 2 if optimizer == "paged_adamw_32bit" else states
    assert found.optimizer / request.graph.num_parameters == pytest.approx(expected, rel=0.02, abs=0.02)


def test_unsloth_keeps_the_inputs_of_layers_on_the_host() -> None:
    assert read(recompute="unsloth").longest.strategy.offload == ("activations",)
    assert read(recompute="unsloth").longest.strategy.recompute == "full"


def test_freezing_trains_the_last_two_layers() -> None:
    graph = read(method="freeze", lora_rank=None, lora_targets=None).longest.graph
    layer = 256 * 256 + 2 * 256 * 128 + 256 * 256 + 3 * 256 * 512 + 2 * 256
    assert graph.num_trainable_parameters == 2 * layer
    wide = read(method="freeze", lora_rank=None, lora_targets=None, framework="LLaMA-Factory").longest
    frozen = graph.num_parameters - 2 * layer
    assert memory_by_stage(wide, prepare(wide))[0].parts["frozen weights"] == 2.0 * frozen


def test_offloading_says_what_is_still_counted_on_the_device() -> None:
    spread = {"n_gpus": 2, "dp": 2, "zero": "3", "global_batch": 4, "framework": "DeepSpeed"}
    found = read(**spread, offload="cpu: optimizer and parameters")
    assert found.longest.strategy.offload == ("optimizer",)
    assert "parameters kept on the host are counted on the device" in found.run.assumed


def test_until_2023_four_bit_layers_keep_their_inputs() -> None:
    four = {"method": "qlora4", "quant_bits": 4, "micro_batch": 1, "global_batch": 1}
    old, new = (read(**four, date=date).longest for date in ("2023-10-20", "2024-06-01"))
    kept = [sum(t.numel for op, count in r.graph for t in op.saved for _ in range(count)) for r in (old, new)]
    inputs_of_qkv, inputs_of_mlp = 128 * 256, 128 * (256 + 512)  # adapters keep converted inputs of their own
    assert kept[0] - kept[1] == 4 * (inputs_of_qkv + inputs_of_mlp)
    assert any("keep their inputs" in said for said in read(**four, date="2023-10-20").run.assumed)


def test_plain_modules_loop_over_experts() -> None:
    assert read().run.request.runtime.experts.grouped == "looped"


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"date": "2023-10-20"}, "fp32"),
        ({"date": "2024-01-20"}, "model"),
        ({"date": "2024-01-20", "method": "qlora4", "quant_bits": 4}, "fp32"),
        ({"date": "2025-01-20"}, "fp32"),
        ({"framework": "HF Trainer + DeepSpeed", "zero": 2, "n_gpus": 2, "dp": 2, "global_batch": 4}, "model"),
        ({"framework": "torchtune"}, "model"),
    ],
)
def test_adapters_have_the_dtype_that_their_program_gave_them(changes: dict[str, Any], dtype: str) -> None:
    assert read(**changes).run.request.graph.attributes["adapter_dtype"] == dtype


def test_notes_say_how_loss_and_update_are_computed() -> None:
    plain, chunked, liger, in_backward, denied = (
        read(notes=notes).run.request.runtime.memory
        for notes in ("", "chunked CE", "liger kernels", "optimizer_in_bwd", "no optimizer_in_bwd")
    )
    assert [(m.loss_chunks, m.half_logits) for m in (plain, chunked, liger)] == [(0, False), (8, True), (8, False)]
    assert [m.updates_in_backward for m in (plain, in_backward, denied)] == [False, True, False]


def test_embeddings_and_head_may_be_trained_beside_adapters() -> None:
    alone, beside = (read(notes=notes).run.request.graph for notes in ("", "LoRA (emb)"))
    assert beside.num_trainable_parameters - alone.num_trainable_parameters >= 2 * 1000 * 256


def test_a_kind_of_memory_that_is_not_stated_is_said() -> None:
    found = read(mem_kind="unknown")
    assert (found.kind, found.kind_stated) == ("allocated", False)
    assert "kind of memory not stated: allocated" in found.run.assumed
