"""What a row states is what is forecast: no rule of a reader may replace a stated value.

Readers have many rules: defaults of programs, habits of publishers, limits of frameworks. They fill in what a row
leaves out. A rule that changed a stated value would forecast another run, so such a row is refused. There is one
exception: if the row contradicts itself, or states something that is not modelled, a sentence that begins with the name
of the column says what was taken instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from traincast.cluster.architecture import load_architecture
from traincast.errors import UnknownNameError
from traincast.graph import DType
from traincast.measured.models.language import DIMENSIONS, dimensions_of
from traincast.measured.run import Reading
from traincast.measured.spellings import precision_name, recompute_name, schedule_of
from traincast.strategy import Request, find_runtime, load_precision
from traincast.tables import Row, RowError, flag, number, text

_ROUNDED: Final = 0.02
"""How far a batch per GPU computed from rounded figures may be from the stated one, relative to it."""


class ReplacedError(RowError):
    """A row whose forecast would be that of another run; the text is the reason."""


class Replaced(NamedTuple):
    """A column whose stated value is not the one that is forecast."""

    column: str
    stated: object
    read: object


def check_stated(row: Row, reading: Reading) -> Reading:
    """Return ``reading``; a row that states something else, without a sentence that says why, is refused."""
    for column, stated, read in unexplained(row, reading):
        raise ReplacedError(f"{column} is {stated} in the row, but would be forecast as {read}")
    return reading


def unexplained(row: Row, reading: Reading) -> Iterator[Replaced]:
    """The stated values that ``reading`` replaces without a sentence that says why."""
    return (found for found in replaced(row, reading.request) if not explained(found.column, reading.assumed))


def explained(column: str, sentences: Sequence[str]) -> bool:
    """Return whether a sentence says why the stated value of a column was not taken."""
    heads = (sentence.partition(":")[0] for sentence in sentences)
    return any(
        re.match(rf"(?:[\w ]+ and )?{column}\b", head) is not None and "not stated" not in head for head in heads
    )


def replaced(row: Row, request: Request) -> Iterator[Replaced]:
    """The columns of ``row`` whose stated values differ from those of ``request``.

    Columns that the row leaves empty never differ.
    """
    for column, read in _counts(row, request).items():
        stated = number(row, column)
        if stated is not None and abs(stated - read) > (_ROUNDED * read if column == "batch_per_gpu" else 0):
            yield Replaced(column, stated, read)
    yield from _dimensions(row, request)
    for column, (stated_name, read_name) in _names(row, request).items():
        if stated_name and stated_name != read_name:
            yield Replaced(column, text(row, column), read_name)


def _counts(row: Row, request: Request) -> dict[str, float]:
    """What ``request`` has in columns of counts, without those that have no meaning in it."""
    strategy, place = request.strategy, request.cluster
    micro_batches = strategy.num_microbatches
    found: dict[str, float] = {
        "n_gpus": place.num_devices,
        "n_nodes": place.num_nodes,
        "dp": strategy.dp,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "vp": strategy.virtual_stages,
        "micro_batch": strategy.micro_batch(request.global_batch),
        "batch_per_gpu": request.global_batch / micro_batches / place.num_devices,
        "global_batch": request.global_batch,
    }
    if place.num_devices > place.devices_per_node or (number(row, "gpus_per_node") or 0) < place.num_devices:
        found["gpus_per_node"] = place.devices_per_node
    if number(row, "zero") is not None:
        found["zero"] = strategy.zero
    if strategy.pp == 1 or number(row, "grad_accum") != 1:  # 1: nothing beyond the microbatches of the pipeline
        found["grad_accum"] = micro_batches
    if request.graph.tokens_per_sample:
        found |= dict.fromkeys(("seq", "seq_len"), request.graph.tokens_per_sample)
    return found


def _dimensions(row: Row, request: Request) -> Iterator[Replaced]:
    """The dimensions of the model that differ; a model that is not built from dimensions has none to compare."""
    dims = dimensions_of(request.graph.name)
    usual = {"kv_heads": dims.get("heads"), "ffn": dims.get("expert_ffn")}
    for column, key in DIMENSIONS.items():
        stated, read = number(row, column), dims.get(key, usual.get(key))
        if stated and read and stated not in (read, dims.get("expert_ffn") if key == "ffn" else read):
            yield Replaced(column, stated, read)


def _names(row: Row, request: Request) -> dict[str, tuple[object, object]]:
    """What a row states in columns of names, and what ``request`` has; "" and ``None`` are not stated."""
    strategy = request.strategy
    found: dict[str, tuple[object, object]] = {
        "recompute": (recompute_name(text(row, "recompute")), strategy.recompute),
        "precision": _precisions(row, request),
    }
    if strategy.pp > 1 and text(row, "schedule"):
        found["schedule"] = (schedule_of(row), strategy.schedule)
    if strategy.tp > 1 and (stated := flag(row, "sp")) is not None:
        found["sp"] = (str(stated), str(strategy.sequence_parallel))
    if not load_architecture(request.cluster.device.architecture).runtime:  # whose runtimes stand for every framework
        found["framework"] = (_program(text(row, "framework")), request.runtime.name.partition("-")[0])
    return found


def _program(framework: str) -> str:
    """The program that a row names, without its generation; "" if it is not known."""
    try:
        return find_runtime(framework).name.partition("-")[0] if framework else ""
    except UnknownNameError:
        return ""


def _precisions(row: Row, request: Request) -> tuple[object, object]:
    """The formats of products, if the device has the stated one.

    fp32 and TF32 store the same numbers: which of them multiplies counts only if the row names TF32.
    """
    written = text(row, "precision")
    stated = load_precision(precision_name(written)).linear if written else None
    if stated is None or not request.cluster.device.supports(stated.value):
        return "", ""
    read = request.precision.linear
    if {stated, read} <= {DType.FP32, DType.TF32} and "tf32" not in written.lower():
        return "", ""
    return stated.value, read.value
