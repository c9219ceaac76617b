"""Measured data-parallel steps of convolutional and other models: tables that ``validate dp-steps`` reads."""

from __future__ import annotations

import re
from typing import Final

from traincast.errors import UnknownNameError
from traincast.forecast import usual_precision
from traincast.graph import OperatorGraph, zoo
from traincast.measured.machines import dp_cluster_of
from traincast.measured.models import model, optimizer_name, zoo_name
from traincast.measured.run import Measured, Reading, unstated
from traincast.measured.spellings import optimizer_of, precision_name, supported
from traincast.strategy import Request, Runtime, Strategy, find_runtime, load_precision, load_runtime
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("model", "gpu_model", "n_gpus", "precision", "batch_per_gpu", "step_time_s")
_SAME: Final = {
    "resnet50v15": "resnet50",
    "resnext10132x4d": "resnext101-32x4d",
    "unetmedical": "unet",
    "unetindustrial": "unet-industrial",
    "gnmt": "nmt",
    "gnmtv2": "nmt",
    "vitb16": "vit-base",
    "vitl16": "vit-large",
    "mobilenet": "mobilenet-v1",
    "inception": "inception-v3",
    "biobert": "bert-base",
    "electrabase": "electra-base",
}
"""Other names of models of the zoo."""
_LIKE: Final = {
    "efficientnetwideseb0": "efficientnet-b0",
    "efficientnetwideseb4": "efficientnet-b4",
    "nnunet": "nnunet-2d",
    "seresnext10132x4d": "resnext101-32x4d",
    "quartznet10x5": "quartznet-15x5",  # the only one that NVIDIA's recipe has a configuration of
}
"""Models that are not in the zoo, and the most similar one that is."""
_PYTORCH_2: Final = 23.02
_BINNED_SINCE: Final = {"pytorch": 21.11, "paddlepaddle": 22.12}
"""The first container in which BERT's sequences are grouped by length in bins of 64 (NVIDIA's LDDL), by framework."""
_BINNED_LENGTH: Final = {512: 288}
"""The average padded length of grouped sequences: half of Wikipedia's 512 tokens are text (Krell et al. 2021,
arXiv:2107.02027), and half a bin is padding."""
_MASKED: Final = {128: 20, 512: 80}
_MASKED_SHARE: Final = 0.15
"""Tokens that BERT's recipes predict in a sequence of each length, and their share in sequences of other lengths."""
_SIDES: Final = ("resolution", "image")
"""Names that families give to the side of their square images."""
_SEQUENCE: Final = ("bert", "electra", "transformer", "gpt", "t5")


def group_of(row: Row) -> str:
    """Return what errors are grouped by: the family of the model, or the source if no family is stated."""
    return text(row, "family") or text(row, "source") or "unknown"


def read_run(index: int, row: Row) -> Measured:
    """Read one row; a row without a time or a throughput is refused."""
    seconds = _seconds(row)
    reading = read_row(row)
    return Measured(
        index=index, source=text(row, "source"), request=reading.request, seconds=seconds, assumed=reading.assumed
    )


def _seconds(row: Row) -> float:
    """Return the seconds of one step; if accumulation is not stated, those of one microbatch.

    If only samples per second are stated, the seconds are computed from them.
    """
    one = figure(row, "grad_accum") is None and "microstep_time_s" in row
    seconds = figure(row, "microstep_time_s" if one else "step_time_s")
    rate = figure(row, "throughput_samples_per_s")
    if seconds is None and rate and rate > 0:
        seconds = whole(row, "n_gpus") * whole(row, "batch_per_gpu") * _accumulation(row) / rate
    if not seconds or seconds <= 0:
        raise RowError("no step time is stated")
    return seconds


def _accumulation(row: Row) -> int:
    """Return the microbatches of a step: as stated, or global batch over the batch of all GPUs, or 1."""
    total, share = figure(row, "global_batch"), whole(row, "n_gpus") * whole(row, "batch_per_gpu")
    if figure(row, "grad_accum") is None and "microstep_time_s" not in row and total and total % share == 0:
        return int(total) // share
    return whole(row, "grad_accum", 1)


def request_of(row: Row) -> Request:
    """Return the request that repeats a row's run; see :func:`read_row`."""
    return read_row(row).request


def read_row(row: Row) -> Reading:
    """Return the request that repeats a row's run, and what was assumed in it."""
    if "embedding" in text(row, "parallelism"):
        raise RowError(f"parallelism is {text(row, 'parallelism')[:40]!r}: expected data parallelism only")
    assumed: list[str] = []
    devices, batch = whole(row, "n_gpus"), whole(row, "batch_per_gpu")
    place = dp_cluster_of(row, assumed)
    graph = _graph(row, assumed)
    precision = precision_name(text(row, "precision"), usual=usual_precision(graph, place), assumed=assumed)
    runtime = _runtime(row, assumed)
    optimizer_of(row, optimizer_name(graph), assumed)
    accumulate = _accumulation(row)
    total = figure(row, "global_batch")
    if figure(row, "grad_accum") is None and not total:
        assumed.append(unstated("accumulation", "one microbatch compared"))
    elif total and total != batch * devices * accumulate:
        assumed.append(
            f"global_batch differs from the batch of all GPUs: {batch * devices * accumulate} instead of {total:g}"
        )
    if text(row, "flag"):
        assumed.append(f"the table flags this row: {text(row, 'flag')}")
    request = Request(
        graph=graph,
        cluster=place,
        strategy=Strategy(dp=devices, num_microbatches=accumulate),
        runtime=runtime,
        precision=load_precision(supported(precision, place.device, assumed)),
        global_batch=batch * devices * accumulate,
    )
    return Reading(request=request, assumed=tuple(assumed))


def _runtime(row: Row, assumed: list[str]) -> Runtime:
    """Return the runtime of a row's framework; the container, numbered by year and month, tells PyTorch 1 from 2."""
    framework = text(row, "framework")
    released = figure(row, "container")
    if framework.lower() == "pytorch" and released is not None and released < _PYTORCH_2:
        framework = "PyTorch 1"
    elif framework.lower() == "pytorch" and released is None:
        assumed.append(unstated("release of PyTorch", 2))
    if framework.lower().startswith("tensorflow"):
        compiled = _compiled(row)
        framework = f"{framework} XLA" if compiled else framework
        if not text(row, "xla"):
            assumed.append(unstated("XLA", "on" if compiled else "off"))
    try:
        return find_runtime(framework)
    except UnknownNameError:
        said = f"framework {framework!r} not known: pytorch" if framework else unstated("framework", "pytorch")
        assumed.append(said)
        return load_runtime("pytorch")


def _compiled(row: Row) -> bool:
    """Return whether XLA compiled the graph; ELECTRA's recipe turns it on together with mixed precision."""
    stated = text(row, "xla").lower()
    return stated == "yes" or (
        not stated and "electra" in text(row, "model").lower() and "amp" in text(row, "precision")
    )


def _graph(row: Row, assumed: list[str]) -> OperatorGraph:
    written = text(row, "model")
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", written).lower())
    name = _SAME.get(plain) or _LIKE.get(plain) or zoo_name(written)
    if name is None:
        raise RowError(f"model {written!r} is not in the zoo")
    if plain in _LIKE:
        assumed.append(f"model {written!r} is not in the zoo: {name}")
    tuned = "fine-tuning" in text(row, "task").lower()
    if tuned and name == "electra-base":
        name = "electra-base-squad"
    card = zoo.card(name)
    seq = _length(row, assumed) if any(word in name for word in _SEQUENCE) else None
    changes: dict[str, int] = {}
    if card.family == "bert" and seq:
        changes["predictions"] = 1 if tuned else _MASKED.get(seq, round(_MASKED_SHARE * seq))
        if not text(row, "task"):
            assumed.append(unstated("task", "pre-training"))
    side = _side(row)
    changes |= {key: side for key in _SIDES if side and card.parameters.get(key, side) != side}
    graph = model(_changed(card, changes) if changes else name, seq)
    _say_input(row, card, graph, assumed)
    return graph


def _say_input(row: Row, card: zoo.ModelCard, graph: OperatorGraph, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` for each size of input that a row does not state, or that cannot be read."""
    if graph.tokens_per_sample and card.family not in ("vit",) and not figure(row, "seq_len"):
        assumed.append(unstated("sequence length", graph.tokens_per_sample))
    written = text(row, "input_resolution").lower()
    for key in (*_SIDES, "size", "frames"):
        usual = card.parameters.get(key)
        if usual is None:
            continue
        if not written:
            assumed.append(unstated("size of inputs", usual))
        elif (_side(row) is None) if key in _SIDES else not written.startswith(str(usual)):
            assumed.append(f"size of inputs {written!r} cannot be read: {usual}")


def _length(row: Row, assumed: list[str]) -> int | None:
    """Return the tokens of a sequence after padding: pre-training may group sequences by length."""
    seq = figure(row, "seq_len")
    since = _BINNED_SINCE.get(text(row, "framework").lower())
    released = figure(row, "container")
    if seq and since and released and released >= since and "pre-training" in text(row, "task").lower():
        binned = _BINNED_LENGTH.get(int(seq), int(seq))
        if binned != seq:
            assumed.append(f"sequences of {seq:g} tokens are grouped by length: {binned} tokens on average")
        return binned
    return int(seq) if seq else None


def _side(row: Row) -> int | None:
    """Return the side of square images, stated as ``300x300`` or ``572x572x1``; ``None`` otherwise."""
    sides = text(row, "input_resolution").lower().split("x")
    same = len(sides) > 1 and sides[0] == sides[1] and sides[0].isdecimal()
    return int(sides[0]) if same and (len(sides) == 2 or int(sides[2]) < int(sides[0])) else None


def _changed(card: zoo.ModelCard, changes: dict[str, int]) -> str:
    """Return the spec of a model of the zoo with some of its dimensions changed."""
    parts = {**card.parameters, **changes}
    return f"{card.family}:" + ",".join(f"{k}={str(v).lower()}" for k, v in parts.items() if k != "seq")
