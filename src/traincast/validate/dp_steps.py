"""Measured data-parallel steps of other models (``validate dp-steps``)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

from traincast.cluster import Cluster, find_device, find_node
from traincast.errors import UnknownNameError
from traincast.estimate import CostModel
from traincast.forecast import forecast
from traincast.graph import OperatorGraph, zoo
from traincast.graph.load import load_model
from traincast.strategy import Request, Runtime, Strategy, find_runtime, load_precision, load_runtime
from traincast.validate.outcome import Outcome, Validation, judge
from traincast.validate.steps import precision_name, with_calibration, zoo_name
from traincast.validate.tables import Row, RowError, number, read_table, text, whole

_NEEDS: Final = ("model", "gpu_model", "n_gpus", "precision", "batch_per_gpu", "step_time_s")
_ALIASES: Final = {
    "resnet50v15": "resnet50",
    "resnext10132x4d": "resnext101-32x4d",
    "unetmedical": "unet",
    "unetindustrial": "unet-industrial",
    "efficientnetwideseb0": "efficientnet-b0",
    "efficientnetwideseb4": "efficientnet-b4",
    "nnunet": "nnunet-2d",
    "seresnext10132x4d": "resnext101-32x4d",
    "gnmt": "nmt",
    "gnmtv2": "nmt",
    "vitb16": "vit-base",
    "vitl16": "vit-large",
    "mobilenet": "mobilenet-v1",
    "inception": "inception-v3",
    "biobert": "bert-base",
    "electrabase": "electra-base",
    "quartznet10x5": "quartznet-15x5",  # the only one that NVIDIA's recipe has a configuration of
}
_PYTORCH_2: Final = 23.02
_BINNED_SINCE: Final = {"pytorch": 21.11, "paddlepaddle": 22.12}
"""Containers since which BERT reads long sequences in bins of 64 lengths (NVIDIA's LDDL), by framework."""
_BINNED_LENGTH: Final = {512: 288}
"""What such sequences are padded to on average: half of Wikipedia's 512 are text (Krell et al. 2021,
arXiv:2107.02027), and half a bin is padding."""
_MASKED: Final = {128: 20, 512: 80}
_MASKED_SHARE: Final = 0.15
"""Tokens of a sequence that BERT's recipes predict, and the share of those of other lengths."""
_SEQUENCE: Final = ("bert", "electra", "transformer", "gpt", "t5")


def validate_dp_steps(
    path: Path,
    *,
    cost_model: CostModel | None = None,
    calibrated: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Forecast every row of a table of measured data-parallel steps and compare."""
    rows = read_table(path, needs=_NEEDS)
    return judge(
        rows,
        lambda index, row: forecast_row(index, row, cost_model=cost_model, calibrated=calibrated),
        source=source_of,
        with_memory=False,
        progress=(lambda done: progress(done, len(rows))) if progress else None,
    )


def source_of(row: Row) -> str:
    """What the errors are grouped by: the family of the model."""
    return text(row, "family") or text(row, "source") or "unknown"


def forecast_row(index: int, row: Row, *, cost_model: CostModel | None = None, calibrated: bool = True) -> Outcome:
    """The forecast of one measured step; where accumulation is not stated, of one microbatch."""
    request = request_of(row)
    measured = measured_seconds(row)
    if calibrated:
        request = with_calibration(request)
    report = forecast(request, cost_model=cost_model).report
    return Outcome(
        index=index,
        source=source_of(row),
        measured=measured,
        predicted=report.step_s,
        low=report.low_s,
        high=report.high_s,
        fits=report.fits,
        fits_probability=report.fits_probability,
        predicted_memory=report.peak_memory_bytes,
        memory_low=report.memory_low_bytes,
        memory_high=report.memory_high_bytes,
    )


def measured_seconds(row: Row) -> float:
    """What a row measured: a step, or one microbatch where accumulation is not stated."""
    stated = number(row, "grad_accum") is not None
    seconds = number(row, "step_time_s" if stated or "microstep_time_s" not in row else "microstep_time_s")
    if not seconds or seconds <= 0:
        raise RowError("no step time is stated")
    return seconds


def request_of(row: Row) -> Request:
    """What a row measured, as a request."""
    if "embedding" in text(row, "parallelism"):
        raise RowError(f"{text(row, 'parallelism')}: not a data-parallel run")
    devices = whole(row, "n_gpus")
    batch = whole(row, "batch_per_gpu")
    accumulate = whole(row, "grad_accum", 1)
    return Request(
        graph=_graph(row),
        cluster=_cluster(row, devices),
        strategy=Strategy(dp=devices, num_microbatches=accumulate),
        runtime=_runtime(row),
        precision=load_precision(precision_name(text(row, "precision"))),
        global_batch=batch * devices * accumulate,
    )


def _runtime(row: Row) -> Runtime:
    """The framework of a row; a container's number is its year and month, and tells PyTorch 1 from 2."""
    framework = text(row, "framework") or "pytorch"
    released = number(row, "container")
    if framework.lower() == "pytorch" and released is not None and released < _PYTORCH_2:
        framework = "PyTorch 1"
    if framework.lower().startswith("tensorflow") and _compiled(row):
        framework = f"{framework} XLA"
    try:
        return find_runtime(framework)
    except UnknownNameError:
        return load_runtime("pytorch")


def _compiled(row: Row) -> bool:
    """Whether XLA compiled the graph; ELECTRA's recipe turns it on together with mixed precision."""
    stated = text(row, "xla").lower()
    return stated == "yes" or (
        not stated and "electra" in text(row, "model").lower() and "amp" in text(row, "precision")
    )


def _cluster(row: Row, devices: int) -> Cluster:
    nodes = number(row, "n_nodes")
    per_node = number(row, "gpus_per_node") or (devices / nodes if nodes else min(devices, 8))
    whole_per_node = max(1, min(devices, round(per_node)))
    if devices % whole_per_node:
        raise RowError(f"{devices} GPUs do not fill nodes of {whole_per_node}")
    memory = number(row, "gpu_mem_gb")
    return _node(text(row, "gpu_model"), memory, whole_per_node, text(row, "system")).with_nodes(
        math.ceil(devices / whole_per_node)
    )


@lru_cache(maxsize=256)
def _node(gpu: str, memory_gb: float | None, per_node: int, system: str) -> Cluster:
    device = find_device(gpu, memory_gb, system or None)
    return find_node(device, per_node, None, system=system or None)


def _graph(row: Row) -> OperatorGraph:
    written = text(row, "model")
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", written).lower())
    name = _ALIASES.get(plain) or zoo_name(written)
    if name is None:
        raise RowError(f"model {written!r} is not in the zoo")
    tuned = "fine-tuning" in text(row, "task").lower()
    if tuned and name == "electra-base":
        name = "electra-base-squad"
    seq = _length(row) if any(word in name for word in _SEQUENCE) else None
    card = zoo.card(name)
    changes: dict[str, int] = {}
    if card.family == "bert" and seq:
        changes["predictions"] = 1 if tuned else _MASKED.get(seq, round(_MASKED_SHARE * seq))
    side = _side(row)
    if side and card.parameters.get("resolution", side) != side:
        changes["resolution"] = side
    return _model(_changed(card, changes) if changes else name, seq)


def _length(row: Row) -> int | None:
    """Tokens per sequence as computed: those of pre-training may come in bins of like lengths."""
    seq = number(row, "seq_len")
    since = _BINNED_SINCE.get(text(row, "framework").lower())
    released = number(row, "container")
    if seq and since and released and released >= since and "pre-training" in text(row, "task").lower():
        return _BINNED_LENGTH.get(int(seq), int(seq))
    return int(seq) if seq else None


def _side(row: Row) -> int | None:
    """The side of square images, where a row says it: ``300x300``, ``572x572x1``."""
    sides = text(row, "input_resolution").lower().split("x")
    same = len(sides) > 1 and sides[0] == sides[1] and sides[0].isdecimal()
    return int(sides[0]) if same and (len(sides) == 2 or int(sides[2]) < int(sides[0])) else None


def _changed(card: zoo.ModelCard, changes: dict[str, int]) -> str:
    """A model of the zoo with some of its dimensions changed."""
    parts = {**card.parameters, **changes}
    return f"{card.family}:" + ",".join(f"{k}={str(v).lower()}" for k, v in parts.items() if k != "seq")


@lru_cache(maxsize=512)
def _model(spec: str, seq: int | None) -> OperatorGraph:
    return load_model(spec, seq=seq, use_cache=True)
