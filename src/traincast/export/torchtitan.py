"""torchtitan: a job's TOML file.

Names are of ``torchtitan/config/job_config.py`` of the 0.2 releases, the last that read TOML
(github.com/pytorch/torchtitan, at commit 6404b93 and in its later form with ``[compile]``, ``[quantize]`` and
``expert_tensor_parallel_degree``). From 0.3 on configurations are Python, whose fields have the names of these keys.

FSDP2 shards over ``data_parallel_shard_degree · context_parallel_degree`` ranks; tensor parallelism is always
sequence-parallel; without a pipeline, microbatches are accumulated gradients of ``local_batch_size`` samples, with one,
``local_batch_size`` is cut into them.
"""

from __future__ import annotations

import json
from typing import Final, TypeAlias

from traincast.export.shape import (
    Decoder,
    check_common,
    check_tokens,
    comments,
    decoder_of,
    gradient_dtype,
    header,
    layers_by_stage,
    refuse,
)
from traincast.strategy import Request, Strategy

NAME: Final = "torchtitan"
FLAVORS: Final = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3-405b": ("llama3", "405B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}
"""Models that torchtitan knows by name; another needs a flavor of its own there."""
_SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
}
_DTYPES: Final = {"bf16": "bfloat16", "amp-bf16": "bfloat16", "fp8": "bfloat16", "fp32": "float32", "tf32": "float32"}
_ROTATE: Final = {"all_gather": "allgather", "ring": "alltoall"}
Value: TypeAlias = str | int | bool | list[str] | list[list[str]]
Section: TypeAlias = dict[str, Value]


def torchtitan(request: Request) -> str:
    """The TOML file that trains ``request`` with torchtitan, what it cannot say in comments."""
    _check(request)
    notes = header(request, f"{NAME} 0.2 (in 0.3, set the fields of these names in a Trainer.Config)")
    model = decoder_of(request.graph)
    sections: dict[str, Section] = {
        "model": _model(request, model, notes),
        "training": _training(request, notes),
        "parallelism": _parallelism(request, model, notes),
        "activation_checkpoint": _recompute(request.strategy, notes),
        "compile": {"enable": "elementwise" in request.runtime.fusions or request.precision.name == "fp8"},
    }
    if request.precision.name == "fp8":
        sections["quantize.linear.float8"] = {"recipe_name": "tensorwise"}
    return _written(sections, notes)


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy)
    check_tokens(NAME, request.graph)
    if request.precision.name not in _DTYPES:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_DTYPES)}")
    if strategy.tp > 1 and not strategy.sequence_parallel:
        raise refuse(NAME, f"tp={strategy.tp} without sequence_parallel", "its tensor groups always are; set sp")
    if strategy.pp > 1 and strategy.schedule not in _SCHEDULES:
        raise refuse(NAME, f"schedule={strategy.schedule}", f"choose one of {', '.join(_SCHEDULES)}")
    if "activations" in strategy.offload:
        raise refuse(NAME, "offload=activations", "it offloads parameters and states alone; use recompute instead")
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "it drops no tokens; leave capacity out")
    _check_replicas(strategy)
    _check_experts(strategy)


def _check_replicas(strategy: Strategy) -> None:
    if strategy.zero in (1, 2):
        raise refuse(NAME, f"zero={strategy.zero}", "FSDP2 shards weights as well; use zero=3, or zero=3,reshard=false")
    if strategy.zero == 0 and strategy.cp > 1:
        raise refuse(NAME, f"zero=0 with cp={strategy.cp}", "weights are sharded over context ranks; set zero=3")
    if strategy.zero == 0 and strategy.dp > 1 and strategy.tp * strategy.pp > 1:
        asked = f"zero=0 with dp={strategy.dp}, tp={strategy.tp}, pp={strategy.pp}"
        raise refuse(NAME, asked, "plain replicas go with no other parallelism; set zero=3")
    if strategy.zero == 0 and "optimizer" in strategy.offload:
        raise refuse(NAME, "offload=optimizer with zero=0", "FSDP2 does the offloading; set zero=3")
    if strategy.shard % strategy.cp:
        raise refuse(NAME, f"shard={strategy.shard} with cp={strategy.cp}", "shards span whole context groups")
    if strategy.sync_each and strategy.pp > 1:
        raise refuse(
            NAME, f"sync_each with pp={strategy.pp}", "it reduces after the last microbatch; leave sync_each out"
        )


def _check_experts(strategy: Strategy) -> None:
    if strategy.ep == 1:
        if strategy.expert_tp != strategy.tp:
            raise refuse(NAME, f"etp={strategy.etp} with ep=1", "experts are then cut as all else is; leave etp out")
        return
    replicate, shard = degrees(strategy)
    if strategy.expert_tp not in (1, strategy.tp):
        raise refuse(NAME, f"etp={strategy.expert_tp} with tp={strategy.tp}", "etp is 1 or tp there")
    inner = strategy.cp if strategy.expert_tp == strategy.tp else strategy.cp * strategy.tp
    outer = shard * inner
    if strategy.ep % inner or outer % strategy.ep:
        asked = f"ep={strategy.ep} with {replicate}·{shard} replicas, cp={strategy.cp}, tp={strategy.tp}"
        raise refuse(NAME, asked, f"ep must be a multiple of {inner} that divides {outer}")


def degrees(strategy: Strategy) -> tuple[int, int]:
    """Degrees of replication and of sharding, whose product is ``dp``."""
    if strategy.zero == 0:
        return strategy.dp, 1
    shard = (strategy.shard or strategy.dp * strategy.cp) // strategy.cp
    return strategy.dp // shard, shard


def _model(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    section: Section = {}
    if model is None:
        notes.append(f"dimensions of {request.graph.name} are not in the zoo: give [model] a name and a flavor")
    elif request.graph.name in FLAVORS:
        section["name"], section["flavor"] = FLAVORS[request.graph.name]
    else:
        sizes = f"dim={model.hidden}, n_layers={model.layers}, n_heads={model.heads}, n_kv_heads={model.kv_heads}"
        notes.append(f"no flavor is known for {request.graph.name}: add one with {sizes}, vocab_size={model.vocab}")
    if request.precision.name == "fp8":
        section["converters"] = ["quantize.linear.float8"]
    return section


def _training(request: Request, notes: list[str]) -> Section:
    strategy = request.strategy
    micro_batch = strategy.micro_batch(request.global_batch)
    section: Section = {
        "local_batch_size": micro_batch * (strategy.num_microbatches if strategy.pp > 1 else 1),
        "global_batch_size": request.global_batch,
        "seq_len": request.graph.tokens_per_sample,
        "mixed_precision_param": _DTYPES[request.precision.name],
        "mixed_precision_reduce": "float32",
    }
    if "optimizer" in strategy.offload:
        section["enable_cpu_offload"] = True
        notes.append("offload=optimizer: torchtitan moves sharded parameters and gradients to the host as well")
    if request.precision.name == "tf32":
        notes.append("tf32 is PyTorch's: call torch.set_float32_matmul_precision('high')")
    if "fp32" not in (gradient_dtype(request), request.runtime.reduce_dtype):
        notes.append("gradients are reduced in fp32, whatever the runtime's habit")
    return section


def _parallelism(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    strategy = request.strategy
    replicate, shard = degrees(strategy)
    section: Section = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": strategy.tp,
        "pipeline_parallel_degree": strategy.pp,
        "context_parallel_degree": strategy.cp,
        "expert_parallel_degree": strategy.ep,
    }
    if strategy.zero == 3:
        section["fsdp_reshard_after_forward"] = "always" if strategy.reshard else "never"
        if strategy.prefetch >= 0:
            notes.append(f"prefetch={strategy.prefetch} has no setting: FSDP2 gathers one block ahead")
    if strategy.tp > 1:
        section["enable_async_tensor_parallel"] = request.runtime.overlap_tensor > 0
    if strategy.cp > 1:
        section["context_parallel_rotate_method"] = _ROTATE[strategy.context]
    if strategy.ep > 1:
        section["expert_tensor_parallel_degree"] = strategy.expert_tp
    if strategy.pp > 1:
        section |= _pipeline(request, model, notes)
    return section


def _pipeline(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    strategy = request.strategy
    several = strategy.schedule == "1f1b" and strategy.virtual_stages > 1
    section: Section = {
        "pipeline_parallel_schedule": _SCHEDULES["interleaved" if several else strategy.schedule],
        "pipeline_parallel_microbatch_size": strategy.micro_batch(request.global_batch),
    }
    split = layers_by_stage(request, model.layers) if model else list(strategy.layers)
    if not split:
        notes.append("layers by stage are torchtitan's own: the dimensions of the model are not known")
    elif len(set(split)) > 1:
        section["module_fqns_per_model_part"] = modules(split)
    else:
        section["pipeline_parallel_layers_per_stage"] = split[0]
        section["pipeline_parallel_first_stage_less_layers"] = 0
        section["pipeline_parallel_last_stage_less_layers"] = 0
    return section


def modules(split: list[int]) -> list[list[str]]:
    """Names of the modules of every stage, embedding first, final norm and output last."""
    parts: list[list[str]] = []
    layer = 0
    for count in split:
        parts.append([f"layers.{n}" for n in range(layer, layer + count)])
        layer += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _recompute(strategy: Strategy, notes: list[str]) -> Section:
    if strategy.recompute == "none":
        return {"mode": "none"}
    if strategy.recompute == "full" and strategy.recompute_every == 1:
        return {"mode": "full"}
    if strategy.recompute == "full":
        return {"mode": "selective", "selective_ac_option": str(strategy.recompute_every)}
    notes.append("recompute=selective: torchtitan picks operators, and recomputes more than attention")
    return {"mode": "selective", "selective_ac_option": "op"}


def _written(sections: dict[str, Section], notes: list[str]) -> str:
    lines = comments(notes)
    for name, section in sections.items():
        if section:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Value) -> str:
    """A value in TOML, which writes these as JSON does."""
    return json.dumps(value)
