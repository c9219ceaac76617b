"""torchtitan: a job's TOML file.

Names, and what is refused, are of ``torchtitan/config/job_config.py``, ``distributed/`` and the models'
``parallelize.py`` at :data:`RELEASE`, the last that reads TOML: 0.3 is configured in Python and has renamed fields.

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
    family_of,
    header,
    layers_by_stage,
    refuse,
    sent_dtype,
)
from traincast.strategy import Request, Strategy

NAME: Final = "torchtitan"
RELEASE: Final = "0.2.2"
"""What the names are of."""
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
_HOMES: Final = {"llama": "llama3", "moe": "qwen3", "deepseek": "deepseek_v3", "gpt-oss": "gpt_oss"}
"""Where a flavor of a family would belong."""
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
    """The TOML file that trains ``request`` with torchtitan; settings that it lacks become comments."""
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
    """Whether blocks are compiled: fused kernels, float8 and overlapped tensor traffic all want it."""
    return "elementwise" in request.runtime.fusions or request.precision.name == "fp8" or _overlaps_tensor(request)


def _overlaps_tensor(request: Request) -> bool:
    return request.strategy.tp > 1 and request.runtime.overlap_tensor > 0


def axes(model: str) -> str:
    """What torchtitan can express axis by axis for a model of that name, as constraints of a search."""
    name = FLAVORS.get(model, (_HOMES.get(family_of(model), ""), ""))[0]
    found = f"schedule={'|'.join(_SCHEDULES)},zero=0|3,offload=none|optimizer"
    found += ",pp=1" if name in _WITHOUT_PIPELINE else ""
    return found + (",cp=1" if name in _WITHOUT_CONTEXT else "")


def home(request: Request) -> str:
    """The name of the model in torchtitan, or its own where torchtitan has none like it."""
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
        raise refuse(NAME, f"tp={strategy.tp} without sequence_parallel", "its tensor groups always are; set sp")
    if "activations" in strategy.offload:
        raise refuse(NAME, "offload=activations", "it offloads parameters and states alone; use recompute instead")
    if strategy.capacity:
        raise refuse(NAME, f"capacity={strategy.capacity:g}", "it drops no tokens; leave capacity out")
    if strategy.zero == 3 and strategy.prefetch not in (-1, 1):
        raise refuse(NAME, f"prefetch={strategy.prefetch}", "FSDP2 gathers one block ahead; leave prefetch out")
    _check_model(request)
    if strategy.pp > 1:
        _check_pipeline(strategy)
    _check_replicas(strategy)
    _check_exchange(strategy)
    _check_sharded(request)
    _check_experts(strategy)


def _check_model(request: Request) -> None:
    """Refuse what the model's own code in torchtitan does not have."""
    strategy, name, model = request.strategy, home(request), decoder_of(request.graph)
    if model is not None and model.family not in _HOMES:
        raise refuse(NAME, f"a model of the family {model.family}", f"it has {', '.join(_HOMES)}; use megatron")
    if strategy.pp > 1 and name in _WITHOUT_PIPELINE:
        raise refuse(NAME, f"pp={strategy.pp} with {request.graph.name}", f"its {name} has no pipeline; use pp=1")
    if strategy.cp > 1 and name in _WITHOUT_CONTEXT:
        asked = f"cp={strategy.cp} with {request.graph.name}"
        raise refuse(NAME, asked, f"attention of its {name} does not share sequences; use cp=1")
    least = 2 * strategy.cp * strategy.tp
    if request.graph.tokens_per_sample % least:
        asked = f"{request.graph.tokens_per_sample} tokens with cp={strategy.cp}, tp={strategy.tp}"
        raise refuse(NAME, asked, f"a sequence must be a multiple of 2·cp·tp = {least}")
    if request.precision.name == "fp8" and model is not None and model.experts and strategy.pp * strategy.cp > 1:
        asked = f"fp8 experts with pp={strategy.pp}, cp={strategy.cp}"
        raise refuse(NAME, asked, "they go without pipeline and shared sequences; use bf16, or pp=1 and cp=1")


def _schedule(strategy: Strategy) -> str:
    """The schedule that really runs: one chunk per stage is not interleaved, several are."""
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
        raise refuse(NAME, asked, "1f1b needs as many as stages; use a smaller micro_batch, or schedule=gpipe")


def _check_replicas(strategy: Strategy) -> None:
    if strategy.zero in (1, 2):
        raise refuse(NAME, f"zero={strategy.zero}", "FSDP2 shards weights as well; use zero=3, or zero=3,reshard=false")
    if strategy.zero == 0 and strategy.cp > 1:
        raise refuse(NAME, f"zero=0 with cp={strategy.cp}", "weights are sharded over context ranks; set zero=3")
    if strategy.zero == 0 and strategy.dp > 1 and strategy.tp * strategy.pp > 1:
        asked = f"zero=0 with dp={strategy.dp}, tp={strategy.tp}, pp={strategy.pp}"
        raise refuse(NAME, asked, "plain replicas go with no other parallelism; set zero=3")
    if strategy.shard % strategy.cp:
        raise refuse(NAME, f"shard={strategy.shard} with cp={strategy.cp}", "shards span whole context groups")
    if strategy.shard == 1 and strategy.dp > 1:
        raise refuse(
            NAME, f"shard=1 of {strategy.dp} replicas", "one rank shards nothing; use zero=0, or a wider shard"
        )


def _check_exchange(strategy: Strategy) -> None:
    """Refuse gradient exchanges at other times than torchtitan has them.

    Without a pipeline every microbatch's gradients are reduced, with one those of the last.
    """
    if strategy.sync_each and strategy.pp > 1:
        raise refuse(
            NAME, f"sync_each with pp={strategy.pp}", "it reduces after the last microbatch; leave sync_each out"
        )
    waits = not strategy.sync_each and not (strategy.zero == 3 and strategy.reshard)
    if strategy.pp == 1 and strategy.dp * strategy.cp > 1 and strategy.num_microbatches > 1 and waits:
        habit = "zero=0" if strategy.zero == 0 else "zero=3, reshard=false"
        asked = f"{strategy.num_microbatches} microbatches with {habit}"
        raise refuse(NAME, asked, "it reduces gradients after each of them; set sync_each, or microbatches=1")


def _check_sharded(request: Request) -> None:
    """Refuse, without FSDP, what torchtitan leaves to FSDP."""
    strategy = request.strategy
    if degrees(strategy)[1] * strategy.cp > 1:
        return
    if "optimizer" in strategy.offload:
        raise refuse(
            NAME, "offload=optimizer without sharded replicas", "FSDP2 does the offloading; set dp > 1, zero=3"
        )
    if strategy.tp * strategy.pp > 1 and request.precision.name not in ("fp32", "tf32"):
        asked = f"{request.precision.name} with tp={strategy.tp}, pp={strategy.pp} and no sharded replicas"
        raise refuse(NAME, asked, "FSDP2 does the mixing of dtypes, and fp32 would run; set dp > 1, zero=3")
    if strategy.ep > 1:
        raise refuse(NAME, f"ep={strategy.ep} without sharded replicas", "FSDP2 holds the experts; set dp > 1, zero=3")


def _check_experts(strategy: Strategy) -> None:
    if strategy.ep == 1:
        if strategy.expert_tp != strategy.tp:
            raise refuse(NAME, f"etp={strategy.etp} with ep=1", "experts are then cut as all else is; leave etp out")
        return
    replicate, shard = degrees(strategy)
    if strategy.expert_tp not in (1, strategy.tp):
        raise refuse(NAME, f"etp={strategy.expert_tp} with tp={strategy.tp}", "etp is 1 or tp there")
    ranks, group = shard * strategy.cp * strategy.tp, strategy.ep * strategy.expert_tp
    if ranks % group:
        asked = f"ep·etp = {group} with {replicate} copies of {ranks} ranks"
        raise refuse(NAME, asked, f"experts are shared out within a copy; ep·etp must divide {ranks}")


def degrees(strategy: Strategy) -> tuple[int, int]:
    """Degrees of replication and of sharding, whose product is ``dp``."""
    if strategy.zero == 0:
        return strategy.dp, 1
    shard = (strategy.shard or strategy.dp * strategy.cp) // strategy.cp
    return strategy.dp // shard, shard


def _model(request: Request, model: Decoder | None, notes: list[str]) -> Section:
    """The model's name; where torchtitan lacks it, one that it refuses until the model is added there."""
    graph = request.graph
    known = model is not None and graph.name in FLAVORS
    section: Section = {"name": home(request), "flavor": FLAVORS[graph.name][1] if known else graph.name}
    if model is None:
        notes.append(f"torchtitan has no {graph.name}: register it there, or set name and flavor")
    elif not known:
        sizes = f"dim={model.hidden}, n_layers={model.layers}, n_heads={model.heads}, n_kv_heads={model.kv_heads}"
        notes.append(f"torchtitan has no flavor {graph.name}: add one with {sizes}, vocab_size={model.vocab}")
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
        notes.append("offload=optimizer: torchtitan moves sharded parameters and gradients to the host as well")
    if request.precision.name == "tf32":
        notes.append("tf32 is PyTorch's: call torch.set_float32_matmul_precision('high')")
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
            "in a pipeline FSDP2 keeps the gradients of a stage whole, in fp32, and reduces them once: less traffic "
            "and more memory than forecast; reshard=false forecasts both"
        )
    section: Section = {
        "pipeline_parallel_schedule": _SCHEDULES[_schedule(strategy)],
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
