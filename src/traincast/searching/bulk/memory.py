"""The memory of members: whether each fits on its devices and hosts, as need over capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from traincast.searching.bulk.family import NOT_RUN, Batch, Blocks, EvaluatedFamily
from traincast.searching.bulk.rounds import extrapolated
from traincast.searching.bulk.steps import activations
from traincast.searching.space import OFFLOADS, Axes, Way
from traincast.strategy import Request, Strategy
from traincast.strategy.memory.fits import HOST_SHARE, MARGIN, factor, fullest_node, total_at
from traincast.strategy.memory.host import updates_of
from traincast.strategy.memory.peak import (
    beyond_states,
    buffers_of,
    measured_other,
    other_of,
    passes_of,
    runs_ahead,
    states_of,
)
from traincast.strategy.memory.update import update_copies
from traincast.strategy.program.precision import Precision
from traincast.strategy.schedules import Pass
from traincast.strategy.strategy import Offload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrangement:
    """The pieces that each pipeline stage holds, and the bytes that do not depend on the schedule.

    ``kinds`` are the distinct pieces; ``chunks[stage, chunk]`` is an index into them. The tables of bytes have the
    axes [ZeRO stage, optimizer on the device or on the host, pipeline stage]: ``states`` are weights, gradients and
    optimizer states together, ``gradients`` and ``updated`` the last two of these alone, ``copies`` the copies of
    gradients that the update makes. ``updates``, with the axes [ZeRO stage, pipeline stage], are the bytes on the host
    if the optimizer is there. ``ahead`` marks stages whose hosts run ahead of their devices.
    """

    kinds: Blocks
    chunks: Ints
    states: Floats
    gradients: Floats
    updated: Floats
    copies: Floats
    updates: Floats
    ahead: npt.NDArray[np.bool_]


class MemberMemory:
    """Computes the memory of the members of one request. Bytes of stages are kept for the next family.

    A member fits if its forecast is at most ``most_memory`` bytes per device, and if it fits on devices and hosts with
    the required margin.
    """

    def __init__(self, request: Request, axes: Axes, precision: Precision, *, most_memory: float) -> None:
        self.request = request
        self.axes = axes
        self.most_memory = most_memory
        self._precision = precision
        self._factor = factor(request.runtime, MARGIN)
        self._arrangements: dict[tuple[object, ...], _Arrangement] = {}

    def batches(self, entry: EvaluatedFamily, group: Sequence[Way], pieces: Blocks) -> list[Batch]:
        """Return the members that run the family's last cut, into ``pieces``, by the ways of ``group``."""
        arrangement = self._arrangement(entry, group[0], pieces)
        for kind in arrangement.kinds:
            if kind not in entry.held:
                entry.held[kind] = self._held(entry, kind)
        held = np.stack([entry.held[kind] for kind in arrangement.kinds])[arrangement.chunks]
        passes = held[..., :3].reshape(len(held), -1, 3)
        runtime = entry.request.runtime
        buffers = buffers_of(held[:, :, 0, 3].max(axis=1), ahead=arrangement.ahead, runtime=runtime)
        zeros, hosted = [s.zero for s in entry.sharings], ["optimizer" in s.offload for s in entry.sharings]
        places = zeros, [int(host) for host in hosted]
        states = arrangement.states[places]
        updates = np.where(np.array(hosted)[:, None], arrangement.updates[zeros], 0.0)
        found = []
        for way in group:
            peaks = extrapolated(partial(activations, passes=passes), way, entry.family)
            beyond = beyond_states(
                sum(buffers.values(), start=peaks),
                gradients=arrangement.gradients[places],
                updated=arrangement.updated[places],
                copies=arrangement.copies[places],
                runtime=runtime,
                microbatches=entry.family.num_microbatches,
            )
            other = self._other(entry.request, states + beyond)
            memory = states + beyond + other
            load = self._load(memory, total_at(states, beyond, other, self.request.runtime, self._factor))
            if any(hosted) or entry.family.offloads_activations:
                load = np.maximum(load, self._host_load(entry, way, updates, held[..., 4]))
            seconds = np.full(len(load), NOT_RUN)
            found.append(Batch(way=way, cut=len(entry.cuts) - 1, memory=memory.max(axis=1), load=load, seconds=seconds))
        return found

    def _load(self, memory: Floats, sure: Floats) -> Floats:
        """Return the need of members divided by the capacity of a device.

        ``memory`` is the forecast and ``sure`` what suffices with the margin, both in bytes by member and stage.
        """
        found: Floats = np.maximum(
            sure.max(axis=1) / self.request.cluster.device.memory_bytes, memory.max(axis=1) / self.most_memory
        )
        return found

    def _host_load(self, entry: EvaluatedFamily, way: Way, updates: Floats, leaves: Floats) -> Floats:
        """Return the need of the fullest node's host divided by its capacity; 0 if the capacity is unknown.

        ``leaves`` has the bytes that each pass adds to those kept for backward, by stage, chunk and pass.
        """
        cluster, strategy = self.request.cluster, entry.request.strategy
        if not cluster.host_memory_bytes:
            return np.zeros(len(updates))
        hosts = updates
        if entry.family.offloads_activations:
            kept = leaves.reshape(len(leaves), -1)
            passes = np.stack([np.maximum(kept, 0.0), np.zeros_like(kept), kept], axis=-1)
            hosts = hosts + extrapolated(partial(activations, passes=passes), way, entry.family)
        found = fullest_node(
            hosts, ranks_per_stage=strategy.num_ranks // strategy.pp, devices_per_node=cluster.most_devices_per_node
        )
        return found / (HOST_SHARE * cluster.host_memory_bytes)

    def _held(self, entry: EvaluatedFamily, kind: tuple[int, ...]) -> Floats:
        """Return bytes of activations of a piece, whose blocks are ``kind``: one row for each pass, five columns.

        0: bytes kept for backward at the fullest moment of the pass. 1: working memory at that moment. 2: bytes that
        the pass adds to those kept (negative if it frees more). 3: the largest tensor that its tensor-parallel
        collectives carry. 4: bytes that the pass adds to those that wait on the host.
        """
        found = passes_of(entry.footprints[list(kind)], offloaded=entry.family.offloads_activations)
        whole = passes_of(entry.footprints[list(kind)], offloaded=False) if entry.family.offloads_activations else found
        gathered = max((entry.programs[b].footprint.gathered for b in set(kind)), default=0.0)
        return np.array(
            [
                (found[p].kept, found[p].working, found[p].leaves, gathered, whole[p].leaves - found[p].leaves)
                for p in Pass
            ]
        )

    def _arrangement(self, entry: EvaluatedFamily, way: Way, pieces: Blocks) -> _Arrangement:
        key = way.route, entry.mesh, pieces
        if key not in self._arrangements:
            prepared = entry.prepared(entry.programs, pieces, way, self._precision)
            held = [prepared.held_blocks(s) for s in range(entry.mesh.pp)]
            states: dict[Blocks, Floats] = {}
            updates: dict[Blocks, Floats] = {}
            for blocks in held:
                if blocks not in states:
                    states[blocks] = self._states(entry, blocks)
                    updates[blocks] = self._updates(entry, blocks)
            kinds = tuple(dict.fromkeys(pieces))
            number = {kind: n for n, kind in enumerate(kinds)}
            ahead = runs_ahead(
                [[[entry.programs[b] for b in blocks] for blocks in chunks] for chunks in held],
                inside_node=entry.mesh.span("tp").num_nodes == 1,
            )
            self._arrangements[key] = _Arrangement(
                kinds=kinds,
                chunks=np.array([[number[blocks] for blocks in chunks] for chunks in held]),
                states=np.stack([states[blocks][0] for blocks in held], axis=-1),
                gradients=np.stack([states[blocks][1] for blocks in held], axis=-1),
                updated=np.stack([states[blocks][2] for blocks in held], axis=-1),
                copies=np.stack([states[blocks][3] for blocks in held], axis=-1),
                updates=np.stack([updates[blocks] for blocks in held], axis=-1),
                ahead=np.array(ahead),
            )
        return self._arrangements[key]

    def _states(self, entry: EvaluatedFamily, held: Blocks) -> Floats:
        """Return bytes of a stage that holds ``held``: [what, ZeRO stage, optimizer on the device or on the host].

        ``what`` is 0: weights, gradients and optimizer states; 1: gradients; 2: optimizer states; 3: copies of
        gradients that the update makes.
        """
        chunks = [[entry.programs[b] for b in blocks] for blocks in held]
        table = np.empty((4, 4, 2))
        programs = [program for chunk in chunks for program in chunk]
        for zero, host in product(range(4), (False, True)):
            offload: tuple[Offload, ...] = ("optimizer",) if host else ()
            strategy = replace(_any_stage(entry), zero=zero, offload=offload)  # type: ignore[arg-type]
            runtime, precision, optimizer = self.request.runtime, self._precision, self.request.optimizer
            parts = states_of(chunks, strategy=strategy, runtime=runtime, precision=precision, optimizer=optimizer)
            table[:, zero, int(host)] = (
                sum(sum(part.values()) for part in parts.values()),
                sum(parts["gradients"].values()),
                parts["optimizer"]["optimizer states"],
                update_copies(programs, strategy=strategy, runtime=runtime, precision=precision, optimizer=optimizer),
            )
        return table

    def _updates(self, entry: EvaluatedFamily, held: Blocks) -> Floats:
        """Return host bytes that updates on the host need, by ZeRO stage; zero without such updates."""
        offloads = any("optimizer" in OFFLOADS[name] for name in self.axes.offload)
        if not offloads or not self.request.optimizer:
            return np.zeros(4)
        chunks = [[entry.programs[b] for b in blocks] for blocks in held]
        strategies = [replace(_any_stage(entry), zero=zero) for zero in range(4)]  # type: ignore[arg-type]
        runtime = self.request.runtime
        needed = [updates_of(chunks, strategy=s, runtime=runtime, precision=self._precision) for s in strategies]
        return np.array([sum(parts.values()) for parts in needed])

    def _other(self, request: Request, tensors: Floats) -> Floats:
        """Bytes that a device of each stage holds beside its ``tensors``."""
        other: Floats = sum(other_of(tensors, strategy=request.strategy, runtime=request.runtime).values())
        calibration = request.cluster.calibration
        if calibration is not None:
            other = measured_other(other, tensors + other, calibration.memory_share)
        return other


def _any_stage(entry: EvaluatedFamily) -> Strategy:
    """Return the family's strategy, legal at every ZeRO stage; its programs hold their share of sharded tables."""
    return replace(entry.request.strategy, tables="replicated")
