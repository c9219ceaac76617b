"""DeepSpeed: a ``ds_config.json``.

Names are of ``deepspeed/runtime/config.py``, ``runtime/zero/config.py`` and ``runtime/tensor_parallel/config.py`` at
commits 029f12b, 1b88ac3 and 18e7227 of its master branch (github.com/deepspeedai/DeepSpeed); ``expert_parallel`` is of
its ``module_inject/auto_ep_config.py``, younger than many releases. JSON has no comments: what cannot be said otherwise
stands under ``_comment``, a key that DeepSpeed does not read.

The model is the user's own: its dimensions, the number of stages of its ``PipelineModule`` and its recomputation are
set in Python.
"""

from __future__ import annotations

import json
from typing import Any, Final

from traincast.export.shape import check_common, decoder_of, gradient_dtype, header, parameters_of_largest_block, refuse
from traincast.strategy import Request, Strategy

NAME: Final = "DeepSpeed"
_PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "fp32": {},
    "tf32": {},
    "fp16": {"fp16": {"enabled": True}},
    "bf16": {"bf16": {"enabled": True}},
    "amp": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "amp-bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}


def deepspeed(request: Request) -> str:
    """The JSON file that trains ``request`` with DeepSpeed, what it cannot say under ``_comment``."""
    _check(request)
    strategy = request.strategy
    notes = header(request, NAME)
    config: dict[str, Any] = {
        "train_batch_size": request.global_batch,
        "train_micro_batch_size_per_gpu": strategy.micro_batch(request.global_batch),
        "gradient_accumulation_steps": strategy.num_microbatches,
        "zero_optimization": _zero(request, notes),
        **_PRECISIONS[request.precision.name],
    }
    if request.precision.master is not None:
        config["data_types"] = {"grad_accum_dtype": gradient_dtype(request)}
    if request.runtime.reduce_dtype:
        config["communication_data_type"] = request.runtime.reduce_dtype
    if request.precision.name == "tf32":
        notes.append("tf32 is PyTorch's: set torch.backends.cuda.matmul.allow_tf32")
    config |= _degrees(strategy, notes)
    config |= _recompute(strategy, notes)
    return json.dumps({"_comment": notes, **config}, indent=2, ensure_ascii=False) + "\n"


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy)
    if request.precision.name not in _PRECISIONS:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_PRECISIONS)}")
    if strategy.sequence_parallel:
        raise refuse(NAME, f"sequence_parallel with tp={strategy.tp}", "AutoTP keeps whole activations; leave it out")
    if strategy.tp > 1 and strategy.zero == 3:
        raise refuse(NAME, f"tp={strategy.tp} with zero=3", "AutoTP goes with zero=0, 1 or 2")
    if strategy.cp > 1 and strategy.tp > 1:
        asked = f"cp={strategy.cp} with tp={strategy.tp}"
        raise refuse(NAME, asked, "sequences are shared among plain replicas; set tp=1 or cp=1")
    model = decoder_of(request.graph)
    if model is not None and model.heads % strategy.cp:
        asked = f"cp={strategy.cp} with {model.heads} heads"
        raise refuse(NAME, asked, "Ulysses gives every rank whole heads; choose a cp that divides them")
    if strategy.capacity:
        raise refuse(
            NAME, f"capacity={strategy.capacity:g}", "its automatic experts drop no tokens; leave capacity out"
        )
    if strategy.pp > 1:
        _check_pipeline(strategy)
    _check_sharding(strategy)


def _check_pipeline(strategy: Strategy) -> None:
    pp = f"pp={strategy.pp}"
    if strategy.zero > 1:
        raise refuse(NAME, f"zero={strategy.zero} with {pp}", "its pipelines share optimizer states alone; use zero=1")
    if strategy.tp > 1 or strategy.cp > 1 or strategy.ep > 1:
        others = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep}
        asked = ", ".join(f"{name}={degree}" for name, degree in others.items() if degree > 1)
        raise refuse(NAME, f"{asked} with {pp}", "a configuration joins a pipeline with replicas alone; use megatron")
    if strategy.schedule != "1f1b" or strategy.virtual_stages > 1:
        asked = f"schedule={strategy.schedule}, virtual_stages={strategy.virtual_stages}"
        raise refuse(NAME, asked, "its one schedule is 1f1b with one chunk per stage")
    if strategy.layers:
        asked = f"layers={'/'.join(map(str, strategy.layers))}"
        raise refuse(NAME, asked, "it cuts stages by itself, uniformly or by parameters; leave layers out")


def _check_sharding(strategy: Strategy) -> None:
    replicas = strategy.dp * strategy.cp
    if strategy.shard not in (0, replicas) and strategy.zero != 3:
        asked = f"shard={strategy.shard} of {replicas} with zero={strategy.zero}"
        raise refuse(NAME, asked, "MiCS shards over fewer replicas with zero=3 alone")
    if "optimizer" in strategy.offload and not strategy.zero:
        raise refuse(NAME, "offload=optimizer with zero=0", "ZeRO does the offloading; set zero=1, 2 or 3")
    if "activations" in strategy.offload and strategy.recompute != "full":
        asked = f"offload=activations with recompute={strategy.recompute}"
        raise refuse(NAME, asked, "what it offloads are checkpoints; set recompute=full")
    if strategy.sync_each and strategy.zero < 2:
        raise refuse(NAME, f"sync_each with zero={strategy.zero}", "gradients are exchanged once a step; set zero=2")


def _zero(request: Request, notes: list[str]) -> dict[str, Any]:
    strategy, graph = request.strategy, request.graph
    section: dict[str, Any] = {"stage": strategy.zero}
    if strategy.zero:
        section["overlap_comm"] = request.runtime.overlap_gradients
    if strategy.shard not in (0, strategy.dp * strategy.cp):
        section["mics_shard_size"] = strategy.shard
        notes.append("mics_shard_size wants the model built under deepspeed.zero.MiCS_Init")
    if strategy.zero == 3 and not strategy.reshard:
        section["stage3_max_live_parameters"] = graph.num_parameters
        section["stage3_max_reuse_distance"] = graph.num_parameters
        notes.append("reshard=false: no weights are released before their backward, however many they are")
    if strategy.zero == 3 and strategy.prefetch >= 0:
        section["stage3_prefetch_bucket_size"] = strategy.prefetch * parameters_of_largest_block(graph)
    if "optimizer" in strategy.offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return section


def _degrees(strategy: Strategy, notes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if strategy.tp > 1:
        found["tensor_parallel"] = {"autotp_size": strategy.tp}
    if strategy.pp > 1:
        found["pipeline"] = {"stages": strategy.pp}
        notes.append(f"build the model as PipelineModule(…, num_stages={strategy.pp}, partition_method='uniform')")
    if strategy.cp > 1:
        found["sequence_parallel_size"] = strategy.cp
        notes.append(
            f"cp={strategy.cp}: Ulysses exchanges heads by all-to-all, not keys and values by {strategy.context}"
        )
    if strategy.ep > 1:
        found["expert_parallel"] = {
            "enabled": True,
            "autoep_size": strategy.ep,
            "expert_tensor_parallel_size": strategy.expert_tp,
        }
    return found


def _recompute(strategy: Strategy, notes: list[str]) -> dict[str, Any]:
    if strategy.recompute == "none":
        return {}
    if strategy.recompute == "selective" or strategy.recompute_every > 1:
        what = (
            "of attention alone" if strategy.recompute == "selective" else f"of every {strategy.recompute_every}. layer"
        )
        notes.append(f"recomputation {what} is the model's own: wrap those modules with deepspeed.checkpointing")
    elif strategy.pp > 1:
        notes.append("full recomputation: one checkpoint per layer of the pipeline")
    else:
        notes.append("full recomputation is the model's own: model.gradient_checkpointing_enable()")
    found: dict[str, Any] = {
        "activation_checkpointing": {"cpu_checkpointing": "activations" in strategy.offload},
    }
    if strategy.pp > 1 and strategy.recompute == "full" and strategy.recompute_every == 1:
        found["pipeline"] = {"stages": strategy.pp, "activation_checkpoint_interval": 1}
    return found
