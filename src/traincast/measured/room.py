"""What memory says of settings that a row leaves out: the length of its texts, and whether layers are recomputed.

A run that was measured has fitted into its devices. And the memory that a row states grows with the length of the
texts, which differs between scripts by a factor of four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Final

from traincast.errors import TraincastError
from traincast.graph import OpKind
from traincast.measured.dialect import vocabulary
from traincast.measured.machines import Machines
from traincast.measured.recipes import recipe_of
from traincast.measured.run import Reading, unstated
from traincast.strategy import Request
from traincast.strategy.prepare import memory_by_stage, prepare
from traincast.tables import Row, RowError, figure

_SURE: Final = 1.25
"""How far forecast memory must be from what a row states, or from what its device has, to say anything: forecasts of
runs whose settings are known are off by up to a fifth."""


def in_room(row: Row, reading: Reading, read: Callable[[Row], Reading]) -> Reading:
    """Return ``reading`` with the length and the recomputation that its row leaves out and that memory tells.

    ``read`` reads a row of the same kind: it is called with rows that state a length.
    """
    return _recomputed(row, _lengthened(row, reading, read))


def _lengthened(row: Row, reading: Reading, read: Callable[[Row], Reading]) -> Reading:
    """Return the reading with the usual length whose forecast memory is nearest to the stated one."""
    words, request = vocabulary(Machines), reading.request
    stated = words.memory_in_use.find(row)
    name = request.graph.name.partition(":")[0].partition("-")[0]
    recipe = recipe_of(row)
    if (
        stated is None
        or figure(row, "seq_len")
        or name not in words.padded_encoders
        or (recipe is not None and recipe.tokens)
    ):
        return reading
    used = float(stated[1]) / float(stated[2]) * request.cluster.device.memory_bytes
    if not used or abs(log(needed_bytes(request) / used)) <= log(_SURE):
        return reading
    others = {length: read({**row, "seq_len": length}) for length in words.padded_lengths}
    distances = {length: abs(log(needed_bytes(other.request) / used)) for length, other in others.items()}
    length = min(distances, key=distances.__getitem__)
    if length == request.graph.tokens_per_sample:
        return reading
    said = f"{unstated('sequence length', length)}, which fits the stated {used / 1e9:.0f} GB"
    return replace(others[length], assumed=(*others[length].assumed, said))


def _recomputed(row: Row, reading: Reading) -> Reading:
    """Return the reading with full recomputation if no device could hold the activations of a transformer otherwise."""
    request, has = reading.request, reading.request.cluster.device.memory_bytes
    attends = any(op.kind is OpKind.ATTENTION for op, _ in request.graph)
    if request.strategy.recompute != "none" or not attends or vocabulary(Machines).saves_memory(row):
        return reading
    needs = needed_bytes(request)
    if needs <= _SURE * has:
        return reading
    changed = replace(request, strategy=replace(request.strategy, recompute="full"))
    said = f"without recomputation the run needs {needs / 1e9:.0f} GB per device, which has {has / 1e9:.0f}: full"
    return Reading(request=changed, assumed=(*reading.assumed, said))


def needed_bytes(request: Request) -> float:
    """Return the forecast memory of the fullest device; a request that cannot be run is refused."""
    try:
        return max(memory.total for memory in memory_by_stage(request, prepare(request)))
    except TraincastError as error:
        raise RowError(str(error)) from error
