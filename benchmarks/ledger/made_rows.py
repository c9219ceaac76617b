"""Rows of measured runs that are made up, for tables that everybody has: one row for each habit of the readers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]

_STEP: Final[Row] = {
    "source": "made up", "framework": "Megatron-LM", "model": "llama-small", "n_layers": 4, "hidden": 256, "heads": 8,
    "kv_heads": 4, "ffn": 688, "seq": 128, "vocab": 1000, "gpu": "H100-SXM5-80GB", "n_gpus": 16, "gpus_per_node": 8,
    "dp": 2, "tp": 4, "pp": 2, "micro_batch": 2, "grad_accum": 4, "global_batch": 16, "recompute": "full",
    "precision": "bf16", "zero": 1, "sp": 1, "status": "ok", "step_time_s": 0.05, "mem_gb": 3.0,
}  # fmt: skip
_NO_SHAPE: Final[Row] = dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab"))
_TPU: Final[Row] = {
    "framework": "MaxText (JAX)", "gpu": "TPU v5e", "hardware": "2x v5e-256", "gpus_per_node": None, "n_gpus": 512,
    "interconnect": "ICI + DCN between slices", "dp": 512, "tp": 1, "pp": 1, "zero": 3, "grad_accum": 1,
    "global_batch": 1024, "recompute": "remat_policy=full", "mem_gb": None,
}  # fmt: skip
_MIXTURE: Final[Row] = {
    **dict.fromkeys(_STEP), "source": "a lab", "framework": "Megatron-Core", "model": "Qwen3_30B_a3B", "seq": 4096,
    "gpu": "GB300", "n_gpus": 8, "gpus_per_node": 4, "dp": 8, "ep": 8, "micro_batch": 4, "global_batch": 512,
    "precision": "MXFP8", "step_time_s": 9.0,
}  # fmt: skip
_STEPS: Final[tuple[Row, ...]] = (
    {},
    {"zero": None, "sp": None, "recompute": "?", "grad_accum": None},
    {"framework": "PyTorch 2.6", "notes": "torch.compile", "micro_batch": None, "grad_accum": None},
    {"framework": "torchtitan", "notes": "FSDP", "tp": 1, "dp": 8, "zero": 3, "global_batch": 64},
    {"framework": "nanotron", "status": "OOM", "step_time_s": None, "mem_gb": None},
    {"framework": "DeepSpeed", "pp": 1, "dp": 4, "zero": 2, "grad_accum": 2},
    {"framework": "nothing known"},
    {"gpu": "a GPU of next year"},
    {"dp": None, "pp": 8, "grad_accum": None, "micro_batch": 1},
    {"grad_accum": None, "micro_batch": 3},
    {"precision": "fp8", "recompute": "selective", "vp": 2, "notes": "distributed optimizer"},
    {**_NO_SHAPE, "model": "Llama 3 8B", "seq": 8192},
    {**_NO_SHAPE, "model": "GPT-3 175B", "seq": 2048, "params_b": 175},
    {**_NO_SHAPE, "model": "a secret model"},
    {"framework": "NeMo-Megatron 2.16.0", "gpu": "Trainium1 NeuronCore-v2", "gpus_per_node": 16},
    {"framework": "llm-foundry (FSDP)", "tp": 1, "pp": 1, "dp": 16, "grad_accum": 1, "micro_batch": 1, "gpu": "A100"},
    _TPU,
    {**_TPU, "notes": "dcn_fsdp_parallelism=2"},
    {**_TPU, "hardware": "", "notes": "4 slices data-parallel over DCN"},
    {**_MIXTURE, "date": "26.04.01"},
    {**_MIXTURE, "date": "2026"},
    {**_MIXTURE, "model": "Qwen3_30B_a3B (tokendrop)"},
)  # fmt: skip
_DP_STEP: Final[Row] = {
    "family": "cnn", "model": "resnet18", "framework": "PyTorch", "container": "23.06", "gpu_model": "V100",
    "gpu_mem_gb": 32, "system": "DGX-2", "n_gpus": 16, "n_nodes": 1, "gpus_per_node": 16, "parallelism": "data",
    "precision": "amp_fp16", "batch_per_gpu": 32, "step_time_s": 0.04, "microstep_time_s": 0.02,
}  # fmt: skip
_GAUDI: Final[Row] = {
    **dict.fromkeys(_DP_STEP), "family": "fine-tune", "model": "vit_base_patch16_224_in21k", "n_gpus": 8,
    "framework": "optimum-habana multi_card", "gpu_model": "Gaudi2 (HL-225)", "gpus_per_node": 8, "precision": "bf16",
    "batch_per_gpu": 100, "global_batch": 800, "step_time_s": 0.12, "microstep_time_s": 0.12,
    "notes": "a short fine-tune on cifar10",
}  # fmt: skip
_DP_STEPS: Final[tuple[Row, ...]] = (
    {},
    {"system": None, "gpu_model": "A100-SXM4-40GB", "gpu_mem_gb": None, "n_nodes": 2, "gpus_per_node": 8,
     "interconnect": "2 x 100 GbE RoCE + 1 GbE mgmt"},
    {"framework": "TensorFlow1", "xla": True, "precision": "fp32", "model": "resnet50"},
    {"framework": "MXNet", "model": "resnet50", "dali": True},
    {"family": "bert", "model": "bert-large", "seq_len": 128, "grad_accum": 4, "global_batch": 2048,
     "step_time_s": 4.0, "microstep_time_s": 1.0},
    {"model": "no such network"},
    {"parallelism": "pipeline"},
    {"batch_per_gpu": 0.3},
    _GAUDI,
    {**_GAUDI, "model": "roberta_base", "batch_per_gpu": 2, "global_batch": 16, "notes": "a short one on wikitext"},
    {**_GAUDI, "model": "Qwen2_7B", "seq_len": 128, "batch_per_gpu": 2, "global_batch": 16},
)  # fmt: skip
_TUNING: Final[Row] = {
    "source": "made up", "framework": "HF Trainer", "model": "org/tiny-llama-hf", "n_layers": 4, "hidden": 256,
    "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 1000, "method": "lora", "lora_rank": 8,
    "lora_targets": "q_proj+v_proj", "gpu": "NVIDIA A100-80GB", "n_gpus": 1, "dp": 1, "zero": 0, "seq": 128,
    "micro_batch": 2, "grad_accum": 1, "global_batch": 2, "recompute": "no", "precision": "bfloat16",
    "optimizer": "AdamW", "step_time_s": 0.1, "mem_gb": 1.0, "mem_kind": "allocated", "mem_unit": "GiB",
    "judge_time": True, "judge_memory": True,
}  # fmt: skip
_TUNINGS: Final[tuple[Row, ...]] = (
    {},
    {"method": "full", "lora_rank": None, "lora_targets": None, "optimizer": "paged_adamw_8bit"},
    {"method": "qlora4", "quant_bits": 4, "mem_kind": "reserved"},
    {"method": "dora", "mem_kind": "nvidia-smi", "recompute": "yes"},
    {"method": "ia3"},
    {"method": "no such method"},
    {"n_gpus": 8, "dp": 8, "zero": 3, "global_batch": 16, "framework": "FSDP"},
    {"framework": "litgpt", "mem_kind": "reserved", "notes": "seq is a cap", "avg_tokens_per_step": 200},
    {"framework": "PEFT", "avg_tokens_per_step": 150, "lora_targets": "all-linear"},
    {"model": "meta-llama/Llama-2-7b-hf", **dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab"))},
)
MADE: Final[dict[str, tuple[Row, tuple[Row, ...]]]] = {
    "steps": (_STEP, _STEPS),
    "dp-steps": (_DP_STEP, _DP_STEPS),
    "finetune": (_TUNING, _TUNINGS),
}
"""By the kind of table: a whole row, and what each of the rows has otherwise."""


def write_made(kind: str, folder: Path) -> Path:
    """Write the made-up rows of a kind of table as a file in ``folder``, and return its path."""
    base, changes = MADE[kind]
    rows = [{**base, **change} for change in changes]
    columns = sorted({name for row in rows for name in row})
    path = folder / f"{kind}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path
