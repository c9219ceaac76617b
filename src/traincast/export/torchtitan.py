"""torchtitan: a job's TOML file.

Names and refusals follow ``torchtitan/config/job_config.py``, ``distributed/`` and the models' ``parallelize.py`` at
:data:`RELEASE`, the last release that reads TOML: 0.3 is configured in Python and has renamed fields.

FSDP2 shards over ``data_parallel_shard_degree · context_parallel_degree`` ranks. Tensor parallelism always includes
sequence parallelism. Without a pipeline, ``local_batch_size`` is one microbatch, and gradients are accumulated over
several; with a pipeline, ``local_batch_size`` is divided into microbatches.
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
    family_of,
    header,
    layers_by_stage,
    not_stated,
    refuse,
    sent_dtype,
)
from traincast.strategy import Request, Strategy

NAME: Final = "torchtitan"
RELEASE: Final = "0.2.2"
"""The release that the names and refusals follow."""
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
"""Models that torchtitan has; any other needs a new flavor there."""
_HOMES: Final = {"llama": "llama3", "moe": "qwen3", "deepseek": "deepseek_v3", "gpt-oss": "gpt_oss"}
"""The torchtitan model to which a flavor of each family belongs."""
_WITHOUT_PIPELINE: Final = frozenset({"qwen3", "gpt_oss"})
_WITHOUT_CONTEXT: Final = frozenset({"deepseek_v3", "gpt_oss"})
_SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
}
_RECOMPUTES: Final = ("none", "selective", "full")
_DTYPES: Final = {"bf16": "bfloat16", "amp-bf16": "bfloat16", "fp8": "bfloat16", "fp32": "float32", "tf32": "float32"}
_ROTATE: Final = {"all_gather": "allgather", "ring": "alltoall"}
Value: TypeAlias = str | int | bool | list[str] | list[list[str]]
Section: TypeAlias = dict[str, Value]


def torchtitan(request: Request) -> str:
    """Return the TOML file that trains ``request`` with torchtitan; what it cannot state becomes a comment."""
    _check(request)
    notes = header(request, f"{NAME} {RELEASE}")
    model = decoder_of(request.graph)
    sections: dict[str, Section] = {
        "model": _model(request, model, notes),
        "training": _training(request, notes),
        "parallelism": _parallelism(request, model, notes),
        "activation_checkpoint": _recompute(request.strategy, notes),
        "compile": {"enable": _compiles(request)},
    }
    if request.precision.name == "fp8":
        sections["quantize.linear.float8"] = {"recipe_name": "tensorwise"}
        if model is not None and model.experts:
            sections["quantize.grouped_mm.float8"] = {"fqns": ["experts"]}
    return _written(sections, notes)


def _compiles(request: Request) -> bool:
    """Return whether blocks are compiled: fused kernels, float8 and overlapped tensor parallelism need it."""
    return (
        "elementwise" in request.runtime.kernels.fusions or request.precision.name == "fp8" or _overlaps_tensor(request)
    )


def _overlaps_tensor(request: Request) -> bool:
    return request.strategy.tp > 1 and request.runtime.exchange.overlap_tensor > 0


def axes(model: str) -> str:
    """Return the values of each axis that torchtitan supports for a model, as constraints of a search."""
    name = FLAVORS.get(model, (_HOMES.get(family_of(model), ""), ""))[0]
    found = f"schedule={'|'.join(_SCHEDULES)},zero=0|3,offload=none|optimizer"
    found += ",pp=1" if name in _WITHOUT_PIPELINE else ""
    return found + (",cp=1" if name in _WITHOUT_CONTEXT else "")


def home(request: Request) -> str:
    """Return the name of the model in torchtitan, or its own name if torchtitan has no such model."""
    model, own = decoder_of(request.graph), request.graph.name
    if model is None:
        return own
    return FLAVORS[own][0] if own in FLAVORS else _HOMES.get(model.family, own)


def _check(request: Request) -> None:
    strategy = request.strategy
    check_common(NAME, strategy, recomputes=_RECOMPUTES)
    check_tokens(NAME, request.graph)
    if request.precision.name not in _DTYPES:
        raise refuse(NAME, f"precision {request.precision.name}", f"choose one of {', '.join(_DTYPES)}")
    if strategy.tp > 1 and not strategy.sequence_parallel:
        raise refuse(
            NAME, f"tp={strategy.tp} without sequence_parallel", "its tensor parallelism always includes it; set sp"
        )
    if "activations" in strategy.offload:
        raise refuse(
            NAME, "offload=activations", "it offloads only parameters and optimizer states; use recompute instead"
        )
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "it drops no tokens; leave capacity out")
    if strategy.zero == 3 and strategy.prefetch not in (-1, 1):
        raise refuse(NAME, f"prefetch={strategy.prefetch}", "FSDP2 always gathers one block ahead; leave prefetch out")
    _check_model(request)
    if strategy.pp > 1:
        _check_pipeline(strategy)
    _check_replicas(strategy)
    _check_exchange(strategy)
    _check_sharded(request)
    _check_experts(strategy)


def _check_model(request: Request) -> None:
    """Refuse a strategy that torchtitan's code for the model does not support."""
    strategy, name, model = request.strategy, home(request), decoder_of(request.graph)
    if model is not None and model.family not in _HOMES:
        raise refuse(NAME, f"a model of the family {model.family}", f"it has {', '.join(_HOMES)}; use megatron")
    if strategy.pp > 1 and name in _WITHOUT_PIPELINE:
        raise refuse(NAME, f"pp={strategy.pp} with {request.graph.name}", f"its {name} has no pipeline; use pp=1")
    if strategy.cp > 1 and name in _WITHOUT_CONTEXT:
        asked = f"cp={strategy.cp} with {request.graph.name}"
        raise refuse(NAME, asked, f"its {name} does not support context parallelism; use cp=1")
    least = 2 * strategy.cp * strategy.tp
    if request.graph.tokens_per_sample % least:
        asked = f"{request.graph.tokens_per_sample} tokens with cp={strategy.cp}, tp={strategy.tp}"
        raise refuse(NAME, asked, f"a sequence must be a multiple of 2·cp·tp = {least}")
    if request.precision.name == "fp8" and model is not None and model.experts and strategy.pp * strategy.cp > 1:
        asked = f"fp8 experts with pp={strategy.pp}, cp={strategy.cp}"
        raise refuse(NAME, asked, "it supports them only without pp and cp; use bf16, or pp=1 and cp=1")


def _schedule(strategy: Strategy) -> str:
    """Return the schedule that runs: with one chunk per stage it is not interleaved, with several it is."""
    if strategy.virtual_stages == 1:
        return {"interleaved": "1f1b", "breadth-first": "gpipe"}.get(strategy.schedule, strategy.schedule)
    return "interleaved" if strategy.schedule == "1f1b" else strategy.schedule


def _check_pipeline(strategy: Strategy) -> None:
    if strategy.schedule not in _SCHEDULES:
        raise refuse(NAME, f"schedule={strategy.schedule}", f"choose one of {', '.join(_SCHEDULES)}")
    schedule, count = _schedule(strategy), strategy.num_microbatches
    if schedule == "gpipe" and strategy.virtual_stages > 1:
        asked = f"schedule=gpipe with virtual_stages={strategy.virtual_stages}"
        raise refuse(NAME, asked, "GPipe has one chunk per stage; use breadth-first")
    if schedule == "1f1b" and count < strategy.pp:
        asked = f"{count} microbatches with pp={strategy.pp}"
        raise refuse(NAME, asked, "1f1b needs at least one per stage; use a smaller micro_batch, or schedule=gpipe")


def _check_replicas(strategy: Strategy) -> None:
    if strategy.zero in (1, 2):
        raise refuse(NAME, f"zero={strategy.zero}", "FSDP2 also shards weights; use zero=3, or zero=3,reshard=false")
    if strategy.zero == 0 and strategy.cp > 1:
        raise refuse(NAME, f"zero=0 with cp={strategy.cp}", "it always shards weights over context ranks; set zero=3")
    if strategy.zero == 0 and strategy.dp > 1 and strategy.tp * strategy.pp > 1:
        asked = f"zero=0 with dp={strategy.dp}, tp={strategy.tp}, pp={strategy.pp}"
        raise refuse(NAME, asked, "replicas without sharding exclude other parallelism; set zero=3")
    if strategy.shard % strategy.cp:
        raise refuse(
            NAME,
            f"shard={strategy.shard} with cp={strategy.cp}",
            "a shard group must hold whole context groups; choose a multiple of cp",
        )
    if strategy.shard == 1 and strategy.dp > 1:
        raise refuse(
            NAME, f"shard=1 of {strategy.dp} replicas", "one rank shards nothing; use zero=0, or a wider shard"
        )


def _check_exchange(strategy: Strategy) -> None:
    """Refuse strategies that exchange gradients at other times than torchtitan.

    It reduces gradients after every microbatch without a pipeline, and after the last microbatch with one.
    """
    if strategy.sync_each and strategy.pp > 1:
        raise refuse(
            NAME, f"sync_each with pp={strategy.pp}", "it reduces after the last microbatch; leave sync_each out"
        )
    waits = not strategy.sync_each and not (strategy.zero == 3 and strategy.reshard)
    if strategy.pp == 1 and strategy.dp * strategy.cp > 1 and strategy.num_microbatches > 1 and waits:
        habit = "zero=0" if strategy.zero == 0 else "zero=3, reshard=false"
        asked = f"{strategy.num_microbatches} microbatches with {habit}"
        raise refuse(NAME, asked, "it reduces gradients after each microbatch; set sync_each, or microbatches=1")


def _check_sharded(request: Request) -> None:
    """Refuse settings that need FSDP if nothing is sharded."""
    strategy = request.strategy
    if degrees(strategy)[1] * strategy.cp > 1:
        return
    if "optimizer" in strategy.offload:
        raise refuse(NAME, "offload=optimizer without sharded replicas", "only FSDP2 offloads; set dp > 1, zero=3")
    if strategy.tp * strategy.pp > 1 and request.precision.name not in ("fp32", "tf32"):
        asked = f"{request.precision.name} with tp={strategy.tp}, pp={strategy.pp} and no sharded replicas"
        raise refuse(NAME, asked, "only FSDP2 mixes dtypes, so fp32 would run; set dp > 1, zero=3")
    if strategy.ep > 1:
        raise refuse(
            NAME, f"ep={strategy.ep} without sharded replicas", "expert parallelism needs FSDP2; set dp > 1, zero=3"
        )


def _check_experts(strategy: Strategy) -> None:
    if strategy.ep == 1:
        if strategy.expert_tp != strategy.tp:
            raise refuse(
                NAME, f"etp={strategy.etp} with ep=1", "experts then have the same tp as other layers; leave etp out"
            )
        return
    replicate, shard = degrees(strategy)
    if strategy.expert_tp not in (1, strategy.tp):
        raise refuse(NAME, f"etp={strategy.expert_tp} with tp={strategy.tp}", "etp must be 1 or tp")
    ranks, group = shard * strategy.cp * strategy.tp, strategy.ep * strategy.expert_tp
    if ranks % group:
        asked = f"ep·etp = {group} with {replicate} copies of {ranks} ranks"
        raise refuse(NAME, asked, f"each copy holds all experts; ep·etp must divide {ranks}")


def degrees(strategy: Strategy) -> tuple[int, int]:
    """Return the degrees of replication and of sharding, whose product is ``dp``."""
    if strategy.zero == 0:
        return strategy.dp, 1
    shard = (strategy.shard or strategy.dp * strategy.cp) // strategy.cp
    return strategy.dp // shard, shard


def _model(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    """Return the model's name and flavor; torchtitan refuses a name that it lacks until the user adds it there."""
    graph = request.graph
    known = model is not None and graph.name in FLAVORS
    section: Section = {"name": home(request), "flavor": FLAVORS[graph.name][1] if known else graph.name}
    if model is None:
        notes.append(f"torchtitan has no {graph.name}: register it there, or set name and flavor")
    elif not known:
        sizes = f"dim={model.hidden}, n_layers={model.layers}, n_heads={model.heads}, n_kv_heads={model.kv_heads}"
        known_too = {"rope_theta": model.rotary_base, "norm_eps": model.norm_epsilon}
        sizes += "".join(f", {name}={value:g}" for name, value in known_too.items() if value)
        notes.append(f"torchtitan has no flavor {graph.name}: add one with {sizes}, vocab_size={model.vocab}")
        if missing := not_stated(model):
            notes.append(f"{' and '.join(missing)} not known: set what your model has")
    if request.precision.name == "fp8":
        experts = ["quantize.grouped_mm.float8"] if model is not None and model.experts else []
        section["converters"] = ["quantize.linear.float8", *experts]
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
        notes.append("offload=optimizer: torchtitan also moves sharded parameters and gradients to the host")
    if request.precision.name == "tf32":
        notes.append("tf32 is a setting of PyTorch: call torch.set_float32_matmul_precision('high')")
    if sent_dtype(request) != "fp32" and strategy.dp * strategy.cp > 1:
        notes.append(
            f"gradients are reduced in fp32, not in {sent_dtype(request)}: forecast with the runtime torchtitan"
        )
    if strategy.zero == 0 and request.precision.master is not None:
        notes.append("without FSDP2 weights stay in fp32 and are cast where they are used (autocast)")
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
    if strategy.tp > 1:
        section["enable_async_tensor_parallel"] = _overlaps_tensor(request)
    if strategy.cp > 1:
        section["context_parallel_rotate_method"] = _ROTATE[strategy.context]
    if strategy.ep > 1:
        section["expert_tensor_parallel_degree"] = strategy.expert_tp
    if strategy.pp > 1:
        section |= _pipeline(request, model, notes)
    return section


def _pipeline(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    strategy = request.strategy
    if strategy.zero == 3 and strategy.reshard and strategy.dp * strategy.cp > 1 and strategy.num_microbatches > 1:
        notes.append(
            "in a pipeline FSDP2 keeps unsharded fp32 gradients of a stage, and reduces them once: less traffic "
            "and more memory than forecast; reshard=false forecasts both"
        )
    section: Section = {
        "pipeline_parallel_schedule": _SCHEDULES[_schedule(strategy)],
        "pipeline_parallel_microbatch_size": strategy.micro_batch(request.global_batch),
    }
    split = layers_by_stage(request, model.layers) if model else list(strategy.layers)
    if not split:
        notes.append("torchtitan divides the layers into stages, because the dimensions of the model are not known")
    elif len(set(split)) > 1:
        section["module_fqns_per_model_part"] = modules(split)
    else:
        section["pipeline_parallel_layers_per_stage"] = split[0]
        section["pipeline_parallel_first_stage_less_layers"] = 0
        section["pipeline_parallel_last_stage_less_layers"] = 0
    return section


def modules(split: list[int]) -> list[list[str]]:
    """Return the names of the modules of each stage: embedding first, final norm and output last."""
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
    notes.append("recompute=selective: torchtitan chooses the operators, and recomputes more than attention")
    return {"mode": "selective", "selective_ac_option": "op"}


def _written(sections: dict[str, Section], notes: list[str]) -> str:
    lines = comments(notes)
    for name, section in sections.items():
        if section:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Value) -> str:
    """Return a value in TOML, which has the same syntax as JSON for these types."""
    return json.dumps(value)
