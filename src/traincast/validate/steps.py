"""Measured steps of language models (``validate steps``): each row becomes a request by its own columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from traincast.cluster import Cluster, find_calibration, find_device, find_node
from traincast.cluster.topology import part_of_node
from traincast.errors import StrategyError, UnknownNameError
from traincast.estimate import CostModel
from traincast.forecast import forecast
from traincast.graph import OperatorGraph, zoo
from traincast.graph.load import load_model
from traincast.strategy import Request, Runtime, Strategy, find_runtime, load_precision, load_runtime, parse_strategy
from traincast.strategy.fitting import at_share, factor
from traincast.strategy.memory import reported
from traincast.strategy.strategy import Recompute
from traincast.units import GIB
from traincast.validate.failures import failed_otherwise
from traincast.validate.outcome import Outcome, Validation, judge
from traincast.validate.tables import Row, RowError, number, read_table, text, whole

_NEEDS: Final = ("source", "gpu", "n_gpus", "seq", "step_time_s")
NEEDS_ON_A_CLUSTER: Final = ("model", "n_gpus", "step_time_s")
_RECOMPUTE: Final[dict[str, Recompute]] = {
    **dict.fromkeys(("none", "no", "false", "off", "0", "0.0"), "none"),
    **dict.fromkeys(("full", "yes", "true", "on", "1", "1.0", "block", "uniform"), "full"),
    **dict.fromkeys(("selective", "partial"), "selective"),
}
_FAMILY_WORDS: Final = (
    ("llama", "llama"),
    ("mistral", "llama"),
    ("qwen", "llama"),
    ("mpt", "mpt"),
    ("bert", "bert"),
    ("opt", "gpt"),
    ("gpt", "gpt"),
    ("megatron", "gpt"),
)
_AS_RUN: Final = {
    ("gpt3_xl", 2048): "gpt:layers=24,hidden=3072,heads=24,activation=gelu_new",
    ("switchxl4", 2048): "switch-xl-4",
}
"""Models of Hugging Face that a table states with other dimensions than those that ran, by name and stated width.

NeuSight's configurations and the shapes of its operators (``neusight_labels``) say so.
"""
_FLASH_SINCE: Final = 2023
"""The year from which Megatron-LM's own runs have fused attention."""


def validate_steps(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    cluster: Cluster | None = None,
    calibrated: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Forecast every row of a table of measured steps and compare.

    Rows run on ``cluster`` if it is given, else on what their own columns say. Without ``calibrated`` nothing is used
    that calibration taught.
    """
    rows = read_table(path, needs=_NEEDS if cluster is None else NEEDS_ON_A_CLUSTER)
    judged = judge(
        rows,
        lambda index, row: forecast_row(index, row, cost_model=cost_model, cluster=cluster, calibrated=calibrated),
        source=lambda row: text(row, "source") or "unknown",
        with_memory=True,
        progress=(lambda done: progress(done, len(rows))) if progress else None,
    )
    otherwise = failed_otherwise(rows, [_ran(row) for row in rows])
    pairs = zip(judged.rows, otherwise, strict=True)
    return replace(judged, rows=tuple(replace(row, failed_otherwise=found) for row, found in pairs))


def forecast_row(
    index: int,
    row: Row,
    *,
    cost_model: CostModel | None = None,
    cluster: Cluster | None = None,
    calibrated: bool = True,
) -> Outcome:
    """The forecast of one measured step.

    A run that failed, and that the strategy itself rules out, counts as forecast not to fit.
    """
    ran = _ran(row)
    measured = number(row, "step_time_s") if ran else None
    memory = number(row, "mem_gb")
    outcome = Outcome(
        index=index, source=text(row, "source") or "unknown", measured=measured, ran=ran, reason=_assumed(row)
    )
    request = request_of(row, cluster=cluster)
    if calibrated:
        request = with_calibration(request)
    else:
        request = replace(request, cluster=replace(request.cluster, calibration=None))
    try:
        made = forecast(request, cost_model=cost_model)
    except StrategyError as error:
        if ran:
            raise
        return _with(outcome, fits=False, fits_probability=0.0, reason=str(error))
    memories, runtime = made.lowered.memory, request.runtime
    return _with(
        outcome,
        predicted=made.report.step_s,
        low=made.report.low_s,
        high=made.report.high_s,
        fits=made.report.fits,
        fits_probability=made.report.fits_probability,
        measured_memory=memory * GIB if memory and ran else None,  # frameworks divide their counters by 1024³
        predicted_memory=reported(memories, runtime),
        memory_low=reported([at_share(m, factor(runtime, 0.05)) for m in memories], runtime),
        memory_high=reported([at_share(m, factor(runtime, 0.95)) for m in memories], runtime),
    )


def _ran(row: Row) -> bool:
    """Whether a row says that its run did not fail."""
    return not any(word in text(row, "status").lower() for word in ("fail", "oom", "error"))


def with_calibration(request: Request) -> Request:
    """``request`` with what was learned on a cluster like its own, unless that has been calibrated itself."""
    cluster = request.cluster
    if cluster.calibration is not None:
        return request
    return replace(request, cluster=replace(cluster, calibration=find_calibration(cluster, request.runtime.name)))


def _assumed(row: Row) -> str:
    """What a forecast had to take for granted."""
    framework = text(row, "framework")
    try:
        find_runtime(framework)
    except UnknownNameError:
        return f"framework {framework or 'not stated'}: taken as {runtime_of(row).name}"
    return ""


def _with(outcome: Outcome, **changes: object) -> Outcome:
    return replace(outcome, **changes)  # type: ignore[arg-type]


def request_of(row: Row, *, cluster: Cluster | None = None) -> Request:
    """What a row measured, as a request: model, cluster, runtime and strategy from its own columns.

    With ``cluster`` it ran on so many nodes of that one. A column ``strategy`` says all of it in one text.
    """
    if re.search(r"\blora\b", text(row, "notes").lower()):
        raise RowError("LoRA trains adapters beside frozen weights: not a step of full training")
    runtime = runtime_of(row)
    strategy, global_batch = _stated_strategy(row) or _strategy(row, runtime)
    return Request(
        graph=_graph(row),
        cluster=_cluster(row) if cluster is None else _part_of(cluster, whole(row, "n_gpus")),
        strategy=strategy,
        runtime=runtime,
        precision=load_precision(precision_name(text(row, "precision"))),
        global_batch=global_batch,
        optimizer="no optimizer" not in text(row, "notes").lower(),
    )


def _stated_strategy(row: Row) -> tuple[Strategy, int] | None:
    """The strategy that a row states as one text, and its global batch."""
    written = text(row, "strategy")
    if not written:
        return None
    global_batch = whole(row, "global_batch")
    return parse_strategy(written, global_batch=global_batch), global_batch


def runtime_of(row: Row) -> Runtime:
    """The runtime of a row's framework; one that is not known is taken for the usual one of its strategy."""
    framework = text(row, "framework")
    try:
        runtime = find_runtime(framework)
        year = re.match(r"(\d{4})", text(row, "date"))
        old = runtime.name == "megatron" and year is not None and int(year[1]) < _FLASH_SINCE
        return load_runtime("megatron-2") if old else runtime
    except UnknownNameError:
        spread = (number(row, "tp") or 1) * (number(row, "pp") or 1) > 1
        return load_runtime("megatron" if spread else "pytorch")


def _microbatches(row: Row, dp: int) -> tuple[int, int]:
    """Samples per microbatch and microbatches per replica, from whichever of the three figures are stated."""
    micro_batch, accumulate = number(row, "micro_batch"), number(row, "grad_accum")
    global_batch = number(row, "global_batch")
    if micro_batch is None:
        if global_batch is None:
            raise RowError("neither micro_batch nor global_batch is stated")
        micro_batch = global_batch / (dp * (accumulate or 1.0))
    if accumulate is None:
        accumulate = 1.0 if global_batch is None else global_batch / (dp * micro_batch)
    if accumulate < 1 or accumulate != int(accumulate) or micro_batch < 1 or micro_batch != int(micro_batch):
        raise RowError(f"dp={dp}, micro batch {micro_batch:g} and global batch {global_batch} do not go together")
    return int(micro_batch), int(accumulate)


def precision_name(written: str) -> str:
    """The precision that a table's spelling means: ``amp_bf16``, ``MXFP8``, ``FP8-CS``, ``NVFP4`` …"""
    plain = written.lower()
    for word, name in (("fp4", "nvfp4"), ("fp8", "fp8"), ("tf32", "tf32"), ("fp32", "fp32")):
        if word in plain:
            return name
    automatic = "amp" in plain
    if "fp16" in plain or "half" in plain:
        return "amp" if automatic else "fp16"
    return "amp-bf16" if automatic else "bf16"


def _strategy(row: Row, runtime: Runtime) -> tuple[Strategy, int]:
    """The strategy that a row states column by column, and its global batch."""
    tp, pp, cp = (whole(row, axis, 1) for axis in ("tp", "pp", "cp"))
    dp = whole(row, "dp", max(1, whole(row, "n_gpus") // (tp * pp * cp)))
    micro_batch, num_microbatches = _microbatches(row, dp)
    zero, shard = number(row, "zero"), _sharded(row)
    sequence_parallel = number(row, "sp")
    chosen_zero = 3 if shard else runtime.zero if zero is None else int(zero)
    virtual = whole(row, "vp", 1) if pp > 1 else 1
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=whole(row, "ep", 1),
        virtual_stages=virtual,
        num_microbatches=num_microbatches,
        schedule="1f1b" if virtual == 1 else "interleaved",
        zero=(min(chosen_zero, 1) if pp > 1 else chosen_zero),  # type: ignore[arg-type]
        shard=shard if pp == 1 and shard < dp else 0,
        sequence_parallel=tp > 1
        and (runtime.sequence_parallel if sequence_parallel is None else sequence_parallel > 0),
        recompute=_RECOMPUTE.get(text(row, "recompute").lower(), runtime.recompute),
    )
    return strategy, dp * micro_batch * num_microbatches


def _part_of(cluster: Cluster, devices: int) -> Cluster:
    """So many devices of ``cluster``: whole nodes, or part of one."""
    if devices % cluster.devices_per_node == 0:
        return cluster.with_nodes(devices // cluster.devices_per_node)
    if devices < cluster.devices_per_node:
        return part_of_node(cluster, cluster.device, devices).with_nodes(1)
    raise RowError(f"{devices} GPUs do not fill nodes of {cluster.devices_per_node}")


def _sharded(row: Row) -> int:
    """Replicas that parameters are sharded over, where the notes say so (``fsdp=64``); 0 where they do not."""
    found = re.search(r"\bfsdp\s*=\s*(\d+)", text(row, "notes").lower())
    return int(found[1]) if found else 0


def _cluster(row: Row) -> Cluster:
    devices = whole(row, "n_gpus")
    most = min(devices, whole(row, "gpus_per_node", 8))
    per_node = next(d for d in range(most, 0, -1) if devices % d == 0)
    return _node(text(row, "gpu"), per_node, text(row, "interconnect"), text(row, "hardware")).with_nodes(
        devices // per_node
    )


@lru_cache(maxsize=256)
def _node(gpu: str, per_node: int, interconnect: str, system: str) -> Cluster:
    device = find_device(gpu)
    return find_node(device, per_node, interconnect or None, system=system or None)


def _graph(row: Row) -> OperatorGraph:
    layers, hidden, heads = number(row, "n_layers"), number(row, "hidden"), number(row, "heads")
    name = text(row, "model")
    seq = whole(row, "seq", 0) or None
    written_out = "/hf" in text(row, "framework").lower()
    as_run = _AS_RUN.get((name, int(hidden or 0))) if written_out else None
    if as_run is not None:
        return _model(as_run, seq)
    if not layers or not hidden or not heads:
        known = zoo_name(name)
        if known is None:
            raise RowError(f"the dimensions of {name or 'the model'} are not stated and it is not in the zoo")
        return _model(_shortened(known, int(layers)) if layers else known, seq)
    kv_heads, ffn, vocab = number(row, "kv_heads"), number(row, "ffn"), number(row, "vocab")
    family = _family(name, ffn, hidden)
    parts = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab}
    if family == "llama":
        parts["kv_heads"] = kv_heads
    spec = f"{family}:" + ",".join(f"{k}={int(v)}" for k, v in parts.items() if v)
    if written_out and family == "gpt":
        spec += ",activation=" + ("relu" if "opt" in name.lower() else "gelu_new")
    stated = number(row, "params_b")
    if family == "llama" and stated and vocab and _closer_tied(row, stated):
        spec += ",tied=true"
    return _model(spec, seq)


def _shortened(known: str, layers: int) -> str:
    """A model of the zoo cut down to so many layers, as a family with its dimensions."""
    card = zoo.card(known)
    if card.parameters.get("layers") in (None, layers):
        return known
    parts = {**card.parameters, "layers": layers}
    if "first_dense" in parts:
        share = layers / float(card.parameters["layers"])
        parts["first_dense"] = max(1, round(int(parts["first_dense"]) * share))
    return f"{card.family}:" + ",".join(f"{k}={str(v).lower()}" for k, v in parts.items() if k != "seq")


def _family(name: str, ffn: float | None, hidden: float) -> str:
    lower = name.lower()
    for word, family in _FAMILY_WORDS:
        if word in lower:
            return family
    return "llama" if ffn and ffn != 4 * hidden else "gpt"


def _closer_tied(row: Row, stated_b: float) -> bool:
    """Whether the stated parameter count is that of a Llama with one embedding table rather than two."""
    layers, hidden, ffn, vocab = (number(row, k) or 0.0 for k in ("n_layers", "hidden", "ffn", "vocab"))
    heads = number(row, "heads") or 1.0
    kv = (number(row, "kv_heads") or heads) / heads
    body = layers * (hidden * hidden * (2 + 2 * kv) + 3 * hidden * ffn)
    one, two = (body + vocab * hidden) / 1e9, (body + 2 * vocab * hidden) / 1e9
    return abs(one - stated_b) < abs(two - stated_b)


def zoo_name(written: str) -> str | None:
    """The zoo model that a table's spelling means, if there is one: ``Qwen3_30B_a3B``, ``DeepSeekV3``."""
    plain = re.sub(r"\(.*?\)", "", written)
    plain = re.sub(r"[^a-z0-9]", "", plain.lower())
    names = {re.sub(r"[^a-z0-9]", "", n): n for n in zoo.names()}
    return names.get(plain)


@lru_cache(maxsize=512)
def _model(spec: str, seq: int | None) -> OperatorGraph:
    return load_model(spec, seq=seq, use_cache=True)
