"""DeepSpeed: a ``ds_config.json``.

Names and refusals follow ``deepspeed/runtime/config.py``, ``runtime/engine.py``, ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py`` and ``module_inject/auto_ep_config.py`` at :data:`RELEASE`. JSON has no comments:
notes are under ``_comment``, a key that DeepSpeed ignores.

The user's Python code defines the model: its dimensions, the number of stages of its ``PipelineModule`` and its
recomputation.
"""

from __future__ import annotations

import json
from typing import Any, Final

from traincast.export.shape import (
    check_common,
    decoder_of,
    gradient_dtype,
    header,
    optimizer_of,
    parameters_of_largest_block,
    refuse,
    sent_dtype,
)
from traincast.graph.optimizers import optimizer_called
from traincast.strategy import Request, Strategy

NAME: Final = "DeepSpeed"
RELEASE: Final = "0.19.8"
"""The release that the names and refusals follow."""
_SCHEDULE: Final = "1f1b"
_RECOMPUTES: Final = ("none", "selective", "full")
_PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "fp32": {},
    "tf32": {},
    "fp16": {"fp16": {"enabled": True}},
    "bf16": {"bf16": {"enabled": True}},
    "amp": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "amp-bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}


def deepspeed(request: Request) -> str:
    """Return the JSON file that trains ``request`` with DeepSpeed; what it cannot state becomes a note."""
    _check(request)
    strategy = request.strategy
    notes = header(request, f"{NAME} {RELEASE}")
    config: dict[str, Any] = {
        **_batch(request, notes),
        "zero_optimization": _zero(request, notes),
        **_PRECISIONS[request.precision.name],
        **_dtypes(request),
    }
    if request.precision.name == "tf32":
        notes.append("tf32 is a setting of PyTorch: set torch.backends.cuda.matmul.allow_tf32")
    _tuning(request, notes)
    config |= _degrees(strategy, notes)
    config |= _recompute(strategy, notes)
    return json.dumps({"_comment": notes, **config}, indent=2, ensure_ascii=False) + "\n"


def _batch(request: Request, notes: list[str]) -> dict[str, Any]:
    """Return the batch sizes; with tp > 1 without the total, because DeepSpeed counts tensor ranks as replicas."""
    strategy = request.strategy
    micro_batch = strategy.micro_batch(request.global_batch)
    found = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": strategy.num_microbatches}
    if strategy.tp == 1:
        return {"train_batch_size": request.global_batch, **found}
    notes.append(
        f"train_batch_size is left out: DeepSpeed counts every rank of a tensor group, and would expect "
        f"{request.global_batch * strategy.tp}, although a step trains on {request.global_batch} samples"
    )
    return found


def _dtypes(request: Request) -> dict[str, Any]:
    """Return the dtypes in which gradients are summed and exchanged; with cp > 1 the latter has another key."""
    found: dict[str, Any] = {}
    if request.precision.master is not None:
        found["data_types"] = {"grad_accum_dtype": gradient_dtype(request)}
    if request.precision.master is not None or request.runtime.exchange.reduce_dtype:
        shared = request.strategy.cp > 1
        found["seq_parallel_communication_data_type" if shared else "communication_data_type"] = sent_dtype(request)
    return found


def axes(model: str) -> str:
    """Return the values of each axis that DeepSpeed supports, as constraints of a search."""
    return f"schedule={_SCHEDULE},virtual_stages=1,cut=even,sp=false"


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy, recomputes=_RECOMPUTES)
    _check_tuning(request)
    if request.precision.name not in _PRECISIONS:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_PRECISIONS)}")
    if strategy.tp > 1 and not request.graph.tokens_per_sample:
        raise refuse(
            NAME, f"tp={strategy.tp} with {request.graph.name}", "AutoTP shards only language models; set tp=1"
        )
    if strategy.sequence_parallel:
        raise refuse(
            NAME, f"sequence_parallel with tp={strategy.tp}", "AutoTP does not shard activations; leave it out"
        )
    if strategy.tp > 1 and strategy.zero == 3:
        raise refuse(NAME, f"tp={strategy.tp} with zero=3", "AutoTP needs zero=0, 1 or 2")
    if strategy.cp > 1 and strategy.tp > 1:
        asked = f"cp={strategy.cp} with tp={strategy.tp}"
        raise refuse(NAME, asked, "sequence parallelism excludes tensor parallelism; set tp=1 or cp=1")
    model = decoder_of(request.graph)
    if model is not None and model.heads % strategy.cp:
        asked = f"cp={strategy.cp} with {model.heads} heads"
        raise refuse(NAME, asked, "Ulysses needs whole heads on every rank; choose a cp that divides them")
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "AutoEP drops no tokens; leave capacity out")
    if strategy.ep > 1:
        _check_experts(strategy)
    if strategy.pp > 1:
        _check_pipeline(strategy)
    _check_sharding(request)


def _check_experts(strategy: Strategy) -> None:
    if strategy.expert_tp != 1:
        raise refuse(NAME, f"etp={strategy.expert_tp} with ep={strategy.ep}", "it does not shard an expert; use etp=1")
    if strategy.cp > 1:
        asked = f"cp={strategy.cp} with ep={strategy.ep}"
        raise refuse(NAME, asked, "it supports either cp or ep; set cp=1 or ep=1")


def _check_pipeline(strategy: Strategy) -> None:
    pp = f"pp={strategy.pp}"
    if strategy.zero > 1:
        raise refuse(NAME, f"zero={strategy.zero} with {pp}", "its pipelines shard only optimizer states; use zero=1")
    if strategy.tp > 1 or strategy.cp > 1 or strategy.ep > 1:
        others = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep}
        asked = ", ".join(f"{name}={degree}" for name, degree in others.items() if degree > 1)
        raise refuse(NAME, f"{asked} with {pp}", "it combines a pipeline only with data parallelism; use megatron")
    if strategy.schedule != _SCHEDULE or strategy.virtual_stages > 1:
        asked = f"schedule={strategy.schedule}, virtual_stages={strategy.virtual_stages}"
        raise refuse(NAME, asked, f"its only schedule is {_SCHEDULE} with one chunk per stage")
    if strategy.layers:
        asked = f"layers={'/'.join(map(str, strategy.layers))}"
        raise refuse(
            NAME, asked, "it chooses the layers of a stage itself, uniformly or by parameters; leave layers out"
        )


def _check_sharding(request: Request) -> None:
    strategy = request.strategy
    replicas = strategy.dp * strategy.cp
    if strategy.shard not in (0, replicas):
        asked = f"shard={strategy.shard} of {replicas} replicas"
        raise refuse(NAME, asked, f"MiCS, which did this, was removed in {RELEASE}; leave shard out, or use torchtitan")
    if "optimizer" in strategy.offload and not strategy.zero:
        raise refuse(NAME, "offload=optimizer with zero=0", "only ZeRO offloads; set zero=1, 2 or 3")
    if "activations" in strategy.offload and strategy.recompute != "full":
        asked = f"offload=activations with recompute={strategy.recompute}"
        raise refuse(NAME, asked, "it offloads only activation checkpoints; set recompute=full")
    if strategy.sync_each and strategy.zero < 2:
        raise refuse(NAME, f"sync_each with zero={strategy.zero}", "gradients are exchanged once a step; set zero=2")
    if strategy.zero == 3 and not strategy.reshard and not strategy.sync_each and strategy.num_microbatches > 1:
        asked = f"reshard=false with {strategy.num_microbatches} microbatches"
        raise refuse(NAME, asked, "stage 3 exchanges gradients after each microbatch; set sync_each")
    sums = gradient_dtype(request)
    if not strategy.zero and replicas > 1 and request.precision.master is not None and sums != _model_dtype(request):
        asked = f"zero=0 with {request.precision.name} and gradients summed in {sums}"
        raise refuse(NAME, asked, f"without ZeRO it sums them in {_model_dtype(request)}; set zero=1")


def _model_dtype(request: Request) -> str:
    return request.precision.weights.value


def _zero(request: Request, notes: list[str]) -> dict[str, Any]:
    strategy, graph = request.strategy, request.graph
    stage: int = strategy.zero
    if not stage and request.precision.master is not None and gradient_dtype(request) != _model_dtype(request):
        stage = 1
        notes.append("stage 1 without replicas shards nothing; stage 0 could not sum gradients in a wider dtype")
    section: dict[str, Any] = {"stage": stage}
    if strategy.zero:
        section["overlap_comm"] = request.runtime.exchange.overlap_gradients
    if strategy.zero == 3 and not strategy.reshard:
        section["stage3_max_live_parameters"] = graph.num_parameters
        section["stage3_max_reuse_distance"] = graph.num_parameters
        notes.append("reshard=false: all gathered weights are kept until their backward pass")
    if strategy.zero == 3 and strategy.prefetch >= 0:
        section["stage3_prefetch_bucket_size"] = strategy.prefetch * parameters_of_largest_block(graph)
    if "optimizer" in strategy.offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return section


def _degrees(strategy: Strategy, notes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if strategy.tp > 1:
        found["tensor_parallel"] = {"autotp_size": strategy.tp}
        notes.append("AutoTP recognizes Hugging Face models; others need a tensor_parallel.partition_config")
    if strategy.pp > 1:
        found["pipeline"] = {"stages": strategy.pp}
        notes.append(f"build the model as PipelineModule(…, num_stages={strategy.pp}, partition_method='uniform')")
    if strategy.cp > 1:
        found["data_parallel_size"] = strategy.dp
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
        notes.append("AutoEP finds the experts of Hugging Face models; others need patterns under expert_parallel")
    return found


def _check_tuning(request: Request) -> None:
    """Refuse combinations with fine-tuning that DeepSpeed cannot run."""
    graph, strategy = request.graph, request.strategy
    if "adapter" in graph.attributes and strategy.tp > 1:
        raise refuse(NAME, f"adapters with tp={strategy.tp}", "AutoTP does not shard adapters; set tp=1")
    bits = {t.bits for block in graph.blocks for t in block.fixed if t.bits}
    if 8 in bits and strategy.zero == 3:
        raise refuse(NAME, "frozen weights of 8 bits with zero=3", "it shards quantised weights of 4 bits only")
    if bits and strategy.tp > 1:
        raise refuse(NAME, f"quantised weights with tp={strategy.tp}", "AutoTP does not shard them; set tp=1")


def _tuning(request: Request, notes: list[str]) -> None:
    """Note what the user's code does before it starts DeepSpeed: adapters, frozen modules, quantised weights."""
    graph = request.graph
    if "adapter" in graph.attributes:
        notes.append("add the adapters with PEFT (LoraConfig, get_peft_model) before deepspeed.initialize")
    elif "fine_tuning" in graph.attributes:
        notes.append("freeze modules with requires_grad_(False) before deepspeed.initialize")
    bits = {t.bits for block in graph.blocks for t in block.fixed if t.bits}
    if bits:
        notes.append(f"load the frozen weights in {max(bits)} bits with bitsandbytes")
        if request.strategy.zero == 3:
            notes.append("set bnb_4bit_quant_storage to the dtype of the model, so that ZeRO-3 can shard the weights")
    optimizer = optimizer_of(graph)
    if not optimizer_called(optimizer).ordinary:
        notes.append(f"pass the optimizer {optimizer} of bitsandbytes to deepspeed.initialize")


def _recompute(strategy: Strategy, notes: list[str]) -> dict[str, Any]:
    if strategy.recompute == "none":
        return {}
    if strategy.recompute == "selective" or strategy.recompute_every > 1:
        what = (
            "of attention only" if strategy.recompute == "selective" else f"of one layer in {strategy.recompute_every}"
        )
        notes.append(f"recomputation {what} is set in the model: wrap those modules with deepspeed.checkpointing")
    elif strategy.pp > 1:
        notes.append("full recomputation: one checkpoint per layer of the pipeline")
    elif "activations" in strategy.offload:
        notes.append("full recomputation is set in the model: wrap its layers with deepspeed.checkpointing.checkpoint")
    else:
        notes.append("full recomputation is set in the model: model.gradient_checkpointing_enable()")
    found: dict[str, Any] = {
        "activation_checkpointing": {"cpu_checkpointing": "activations" in strategy.offload},
    }
    if strategy.pp > 1 and strategy.recompute == "full" and strategy.recompute_every == 1:
        found["pipeline"] = {"stages": strategy.pp, "activation_checkpoint_interval": 1}
    return found
