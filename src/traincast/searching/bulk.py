"""Evaluation in bulk: memory and seconds of whole families of strategies.

What a single forecast makes anew is shared here: works are estimated once per distinct shape over the whole search,
programs of blocks once per family, layouts once per way to cut and shard. What is left for each strategy is a compiled
loop over its slots. Memory comes first, so that what does not fit is never simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import StrategyError
from traincast.searching.balance import balanced_layers
from traincast.searching.blocks import DEVICE, PASSES, BlockTable
from traincast.searching.outline import Outline, Outliner, stand_ins
from traincast.searching.space import OFFLOADS, Axes, Family, Way, ways
from traincast.searching.steps import Habits, Slots, activations, repeats, shortened, slots_of, step_seconds
from traincast.searching.works import Works
from traincast.strategy import Request, Strategy
from traincast.strategy.fitting import HOST_SHARE, MARGIN, factor, fullest_node
from traincast.strategy.host_memory import updates_of
from traincast.strategy.lower import Layout
from traincast.strategy.memory import footprints_of, other_of, passes_of, runs_ahead, states_of
from traincast.strategy.mesh import Mesh
from traincast.strategy.prepare import (
    Prepared,
    check_request,
    cut_pieces,
    kept_precision,
    layers_of,
    programs_of,
    rough_seconds,
)
from traincast.strategy.program import BlockProgram
from traincast.strategy.program_builder import ProgramBuilder
from traincast.strategy.schedules import Pass, load_schedule
from traincast.strategy.schedules.skeleton import Skeleton
from traincast.strategy.schedules.slots import compiled_merge
from traincast.strategy.stages import Stage
from traincast.strategy.strategy import Offload
from traincast.work import Launch, Transfer, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Blocks = tuple[tuple[int, ...], ...]
"""Blocks of several pieces."""

Fitting: TypeAlias = dict[tuple[Way, int], bool]
"""Whether members fit, by their way and ZeRO's stage."""

NOT_RUN: Final = float("inf")
_MOST_PIECES: Final = 50_000
"""Pieces of all microbatches up to which a step that does not repeat itself is simulated in full."""


@dataclass(slots=True)
class Batch:
    """Members of a family that run one cut in one way: bytes and seconds for each way to share and offload states.

    ``memory`` is what the fullest rank is forecast to hold, ``load`` what is needed of the shortest memory over what
    there is of it (as :class:`traincast.strategy.fitting.Need` has it): members fit up to 1.
    """

    way: Way
    cut: int
    memory: Floats
    load: Floats
    seconds: Floats


class Sharing(NamedTuple):
    """What replicas shard between them (ZeRO's stage), and what is offloaded."""

    zero: int
    offload: tuple[Offload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrangement:
    """Which stage holds what: ``chunks`` says which of the ``kinds`` of pieces each chunk of each stage is.

    ``states`` are bytes of weights, gradients and optimizer states by ZeRO's stage, with the optimizer on the device
    or on the host, of every stage; ``updates`` those that the host then holds; ``ahead`` marks stages whose hosts run
    ahead of their devices.
    """

    kinds: Blocks
    chunks: Ints
    states: Floats
    updates: Floats
    ahead: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The model cut into pieces, and ways to run them that take the same route."""

    layers: tuple[int, ...]
    ways: list[Way]
    pieces: Blocks


@dataclass(slots=True)
class Look:
    """A family whose memory is known: its legal members in ``batches``, for each of the ``sharings``.

    ``runs`` is what its blocks take, once works are estimated, ``held`` what the passes of pieces hold, ``rough``
    what blocks weigh where the model is cut, and ``busy`` says which passes of which blocks run anything;
    ``behind`` are members that are too slow to be looked at.
    """

    family: Family
    request: Request
    mesh: Mesh
    builder: ProgramBuilder
    programs: tuple[BlockProgram, ...]
    rough: Sequence[float]
    busy: tuple[bool, ...]
    footprints: Floats
    sharings: list[Sharing]
    batches: list[Batch] = field(default_factory=list)
    cuts: list[_Cut] = field(default_factory=list)
    held: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    runs: Floats | None = None
    behind: int = 0

    def forget(self) -> None:
        """Let go of what only the evaluation needed."""
        self.programs, self.held, self.runs, self.rough = (), {}, None, ()

    @property
    def count(self) -> int:
        """Members."""
        return len(self.batches) * len(self.sharings)

    def strategy(self, batch: Batch, sharing: Sharing) -> Strategy:
        """The strategy of a member."""
        return replace(
            self.request.strategy,
            schedule=batch.way.schedule,
            virtual_stages=batch.way.virtual_stages,
            layers=self.cuts[batch.cut].layers,
            zero=sharing.zero,  # type: ignore[arg-type]
            offload=sharing.offload,
        )


class Bulk:
    """Evaluates families of strategies of one request; what it makes is kept for the next family.

    ``estimate`` says what works take. Members whose forecast is more than ``most_memory`` bytes of a device, or that do
    not fit there or on the hosts with the margin that is asked for, are not simulated.
    """

    def __init__(
        self, request: Request, axes: Axes, estimate: Callable[[Sequence[Work]], Floats], *, most_memory: float
    ) -> None:
        self.request = request
        self.axes = axes
        self.most_memory = most_memory
        self.works = Works(estimate)
        self._precision = kept_precision(request)
        self._factor = factor(request.runtime, MARGIN)
        self._layers = layers_of(request.graph)
        self._arrangements: dict[tuple[object, ...], _Arrangement] = {}
        self._weights: dict[int, tuple[list[float], ProgramBuilder]] = {}
        self._tables: dict[int, tuple[BlockTable, tuple[BlockProgram, ...]]] = {}
        self._taken: dict[int, Floats] = {}
        self._outliner = Outliner(self.works)
        self._outlines: dict[tuple[object, ...], Outline] = {}
        runtime = request.runtime
        compiled_merge()
        self._sending = self.works.number(Launch(collectives=runtime.collective_launches, sends=runtime.send_launches))

    def look(self, family: Family) -> Look | None:
        """What a family's blocks run; none where no member is legal."""
        request = replace(self.request, strategy=family.strategy(self.request.strategy))
        try:
            check_request(request)
            mesh = Mesh.of(request.strategy, request.cluster)
            builder, programs = programs_of(request, mesh)
        except StrategyError:
            return None
        strategy = request.strategy
        replicas = strategy.dp * strategy.cp > 1 or strategy.expert_replicas > 1
        return Look(
            family=family,
            request=request,
            mesh=mesh,
            builder=builder,
            programs=programs,
            rough=self._rough(request, builder, programs),
            busy=tuple(bool(program.items(what)) for program in programs for what in Pass),
            footprints=footprints_of(programs),
            sharings=[Sharing(*s) for s in product(self.axes.zero if replicas else (0,), self._endings(family))],
        )

    def _rough(self, request: Request, builder: ProgramBuilder, programs: tuple[BlockProgram, ...]) -> Sequence[float]:
        """What blocks weigh where the model is cut."""
        key = id(builder)
        if request.strategy.pp > 1 and key not in self._weights:
            self._weights[key] = rough_seconds(request, builder, programs), builder
        return self._weights[key][0] if request.strategy.pp > 1 else ()

    def estimate(self, looks: Iterable[Look]) -> None:
        """Estimate the works of all blocks."""
        chosen = list(looks)
        self._enter_works(look.programs for look in chosen)
        for look in chosen:
            look.runs = self._runs(look.programs)

    def enter(self, look: Look, most_seconds: float = float("inf"), fitting: Fitting | None = None) -> bool:
        """Add the members that could take ``most_seconds`` at most, with their memory.

        Those that do not fit without what this family recomputes and offloads are all that is added where ``fitting``
        says which do. Returns whether larger micro batches are worth a look: not if nothing fits of all there is.
        """
        assert look.runs is not None
        device = look.runs[:, DEVICE].reshape(-1, PASSES)
        each = device[:, Pass.FORWARD] + device[:, Pass.BACKWARD]
        balances = "balanced" in self.axes.cut and "/" not in look.family.recompute
        known = fitting or {}
        if known:
            short = {zero for (_, zero), fits in known.items() if not fits}  # of memory, in one way or another
            look.sharings = [sharing for sharing in look.sharings if sharing.zero in short]
        for every in self._groups(look.family):
            group = [w for w in every if not all(known.get((w, s.zero), False) for s in look.sharings)]
            if not group:
                continue
            pieces = self._enter(look, group, (), most_seconds)
            if pieces and balances and group[0].loops:
                layers = balanced_layers(look.builder.graph, pieces, each)
                if layers:
                    self._enter(look, group, layers, most_seconds)
        seen_all = not look.behind and not fitting
        return not seen_all or any(batch.load.min() <= 1.0 for batch in look.batches)

    def fitting(self, look: Look) -> Fitting:
        """Which ways to run a family fit with which ZeRO stage, without offloading."""
        found: Fitting = {}
        for batch in look.batches:
            for sharing, load in zip(look.sharings, batch.load.tolist(), strict=True):
                if not sharing.offload:
                    key = batch.way, sharing.zero
                    found[key] = found.get(key, True) and load <= 1.0
        return found

    def bounds(self, every: Sequence[Family]) -> Floats:
        """Seconds that no member of each family can beat: the even share of a stage in what its blocks compute.

        Recomputation and offloading only add to the works of the plainest family with the same mesh and micro batch,
        whose works are all that is estimated; infinite where that one is not legal.
        """
        plain: dict[tuple[object, ...], tuple[ProgramBuilder, tuple[BlockProgram, ...]] | None] = {}
        for family in every:
            if family.works not in plain:
                strategy = replace(family, recompute="none", offloads_activations=False).strategy(self.request.strategy)
                request = replace(self.request, strategy=strategy)
                try:
                    plain[family.works] = programs_of(request, Mesh.of(strategy, request.cluster))
                except StrategyError:
                    plain[family.works] = None
        self._enter_works(programs for found in plain.values() if found for programs in found[1:])
        shares: dict[tuple[object, ...], tuple[float, Floats]] = {}
        for key, found in plain.items():
            shares[key] = self._shares(*found) if found else (float("inf"), np.zeros(0))
        bounds = []
        for family in every:
            whole, forwards = shares[family.works]
            each = whole + sum(forwards[family.recomputed].tolist())
            bounds.append(each * family.num_microbatches / family.degrees.pp)
        return np.array(bounds)

    def _shares(self, builder: ProgramBuilder, programs: tuple[BlockProgram, ...]) -> tuple[float, Floats]:
        """Seconds in which devices compute one microbatch, and those of each forward that may be recomputed."""
        device = self._runs(programs)[:, DEVICE].reshape(-1, PASSES)
        blocks = builder.graph.blocks
        counts = np.array([block.count for block in blocks])
        layers = np.array([block.repeated for block in blocks])
        repeated = layers if layers.any() else counts > 0
        whole = counts @ (device[:, Pass.FORWARD] + device[:, Pass.BACKWARD])
        again = np.where([bool(block.backward) for block in blocks], device[:, Pass.FORWARD], 0.0)
        return float(whole), np.repeat(again[repeated], counts[repeated])

    def _enter_works(self, every: Iterable[tuple[BlockProgram, ...]]) -> None:
        """Enter the works of programs that are new, and estimate them."""
        for programs in every:
            if id(programs) not in self._tables:
                self._tables[id(programs)] = BlockTable.of(programs, self.works), programs
        self.works.settle()

    def _runs(self, programs: tuple[BlockProgram, ...]) -> Floats:
        """What the blocks of programs take."""
        if id(programs) not in self._taken:
            self._taken[id(programs)] = self._tables[id(programs)][0].runs(self.works.seconds)
        return self._taken[id(programs)]

    def run(self, looks: Sequence[Look]) -> None:
        """Simulate all members that fit."""
        todo: list[tuple[Look, list[Batch], int, Outline, Ints]] = []
        for look in looks:
            groups: dict[tuple[int, bool, int], list[Batch]] = {}
            endings = len(self._endings(look.family))
            for batch in look.batches:
                fits = (batch.load <= 1.0).reshape(-1, endings).any(axis=1)
                for at in np.flatnonzero(fits).tolist():
                    groups.setdefault((batch.cut, batch.way.splits, at * endings), []).append(batch)
            for (cut, _, at), batches in groups.items():
                outline = self._outline(look, look.cuts[cut], batches[0], look.sharings[at])
                todo.append((look, batches, at, outline, self._messages(look, outline)))
        seconds = self.works.settle()
        habits = Habits.of(self.request.runtime, float(seconds[self._sending]))
        for look, batches, at, outline, messages in todo:
            assert look.runs is not None
            costs, links = outline.costs(look.runs, seconds), seconds[messages][outline.link]
            simulate = partial(step_seconds, outline=outline, costs=costs, links=links, habits=habits)
            for batch in batches:
                found = _seconds(simulate, batch.way, look.family)
                batch.seconds[at : at + len(found)] = found
        for look in looks:
            for batch in look.batches:
                batch.seconds[batch.load > 1.0] = NOT_RUN

    def _least(self, look: Look, pieces: Blocks, way: Way) -> float:
        """Seconds that no member can beat: a stage waits for the first microbatch, computes, and others follow it.

        Stage s begins when the pieces before its first one have run forward. If backwards are whole, its last pass is
        one, after which these pieces run backward.
        """
        assert look.runs is not None
        family = look.family
        loads = {kind: look.runs[:, DEVICE].reshape(-1, PASSES)[list(kind)].sum(axis=0) for kind in set(pieces)}
        each = np.array([loads[blocks] for blocks in pieces])
        forward, both = each[:, Pass.FORWARD], each[:, Pass.FORWARD] + each[:, Pass.BACKWARD]
        before = np.concatenate([[0.0], np.cumsum(forward if way.splits else both)])
        stages = _stages(way, family.degrees.pp)
        busy, first = np.zeros(family.degrees.pp), np.full(family.degrees.pp, len(each))
        for route in stages:
            np.add.at(busy, route, both / len(stages))
            np.minimum.at(first, route, np.arange(len(each)))
        return float((before[first] + family.num_microbatches * busy).max())

    def _groups(self, family: Family) -> list[list[Way]]:
        """Ways to run a family's pipeline, those together that cut the model alike."""
        groups: dict[tuple[object, int], list[Way]] = {}
        for way in ways(self.axes, family.degrees.pp, family.num_microbatches, self._layers):
            groups.setdefault((way.route, way.pieces), []).append(way)
        return list(groups.values())

    def _endings(self, family: Family) -> list[tuple[Offload, ...]]:
        """What a family may offload."""
        offloads = [OFFLOADS[name] for name in self.axes.offload]
        return [o for o in offloads if ("activations" in o) == family.offloads_activations]

    def _enter(self, look: Look, group: list[Way], layers: tuple[int, ...], most_seconds: float) -> Blocks:
        """Add the members that run the model in this cut, with their memory; returns its pieces."""
        request, family = look.request, look.family
        if layers:
            request = replace(request, strategy=replace(request.strategy, layers=layers))
        try:
            stages = cut_pieces(request, look.builder, look.programs, group[0].pieces, look.rough)
        except StrategyError:
            return ()
        pieces = tuple(stage.blocks for stage in stages)
        if np.isfinite(most_seconds):
            all_ways, group = group, [way for way in group if self._least(look, pieces, way) <= most_seconds]
            look.behind += (len(all_ways) - len(group)) * len(look.sharings)
        group = [way for way in group if _slots(way, family.degrees.pp, family.num_microbatches)]
        if not group:
            return pieces
        arrangement = self._arrangement(look, group[0], pieces)
        look.cuts.append(_Cut(layers=layers, ways=group, pieces=pieces))
        for kind in arrangement.kinds:
            if kind not in look.held:
                look.held[kind] = self._held(look, kind)
        held = np.stack([look.held[kind] for kind in arrangement.kinds])[arrangement.chunks]
        passes = held[..., :3].reshape(len(held), -1, 3)
        runtime = look.request.runtime
        gathered = np.where(arrangement.ahead, runtime.held_collectives * held[:, :, 0, 3].max(axis=1), 0.0)
        fixed = gathered + runtime.workspace_bytes
        zeros, hosted = [s.zero for s in look.sharings], ["optimizer" in s.offload for s in look.sharings]
        states = arrangement.states[zeros, [int(host) for host in hosted]]
        updates = np.where(np.array(hosted)[:, None], arrangement.updates[zeros], 0.0)
        for way in group:
            peaks = _extrapolated(partial(activations, passes=passes), way, family)
            memory = self._device_bytes(look.request, states + peaks + fixed)
            load = self._load(memory, states)
            if any(hosted) or family.offloads_activations:
                load = np.maximum(load, self._host_load(look, way, updates, held[..., 4]))
            seconds = np.full(len(load), NOT_RUN)
            batch = Batch(way=way, cut=len(look.cuts) - 1, memory=memory.max(axis=1), load=load, seconds=seconds)
            look.batches.append(batch)
        return pieces

    def _load(self, memory: Floats, states: Floats) -> Floats:
        """What members need of a device over what there is, with the margin; ``memory`` and ``states`` by stage."""
        sure = (states + (memory - states) * self._factor).max(axis=1)
        found: Floats = np.maximum(
            sure / self.request.cluster.device.memory_bytes, memory.max(axis=1) / self.most_memory
        )
        return found

    def _host_load(self, look: Look, way: Way, updates: Floats, leaves: Floats) -> Floats:
        """What members need of the fullest node's host over what there is; 0 where nobody said how much that is.

        ``leaves`` has, by stage, chunk and pass, what is kept for backward or let go of.
        """
        cluster, strategy = self.request.cluster, look.request.strategy
        if not cluster.host_memory_bytes:
            return np.zeros(len(updates))
        hosts = updates
        if look.family.offloads_activations:
            kept = leaves.reshape(len(leaves), -1)
            passes = np.stack([np.maximum(kept, 0.0), np.zeros_like(kept), kept], axis=-1)
            hosts = hosts + _extrapolated(partial(activations, passes=passes), way, look.family)
        found = fullest_node(
            hosts, ranks_per_stage=strategy.num_ranks // strategy.pp, devices_per_node=cluster.devices_per_node
        )
        return found / (HOST_SHARE * cluster.host_memory_bytes)

    def _held(self, look: Look, kind: tuple[int, ...]) -> Floats:
        """Of every pass of a piece what it keeps, needs on top and leaves behind, what its collectives carry, and what
        would be left behind if nothing were offloaded.
        """
        found = passes_of(look.footprints[list(kind)], offloaded=look.family.offloads_activations)
        whole = passes_of(look.footprints[list(kind)], offloaded=False) if look.family.offloads_activations else found
        gathered = max((look.programs[b].footprint.gathered for b in set(kind)), default=0.0)
        return np.array([(found[p].kept, found[p].working, found[p].leaves, gathered, whole[p].leaves) for p in Pass])

    def _arrangement(self, look: Look, way: Way, pieces: Blocks) -> _Arrangement:
        key = way.route, look.mesh, pieces
        if key not in self._arrangements:
            held = [self._prepared(look, look.programs, pieces, way).held_blocks(s) for s in range(look.mesh.pp)]
            states: dict[Blocks, Floats] = {}
            updates: dict[Blocks, Floats] = {}
            for blocks in held:
                if blocks not in states:
                    states[blocks] = self._states(look, blocks)
                    updates[blocks] = self._updates(look, blocks)
            kinds = tuple(dict.fromkeys(pieces))
            number = {kind: n for n, kind in enumerate(kinds)}
            ahead = runs_ahead(
                [[[look.programs[b] for b in blocks] for blocks in chunks] for chunks in held],
                inside_node=look.mesh.span("tp").num_nodes == 1,
            )
            self._arrangements[key] = _Arrangement(
                kinds=kinds,
                chunks=np.array([[number[blocks] for blocks in chunks] for chunks in held]),
                states=np.stack([states[blocks] for blocks in held], axis=-1),
                updates=np.stack([updates[blocks] for blocks in held], axis=-1),
                ahead=np.array(ahead),
            )
        return self._arrangements[key]

    def _states(self, look: Look, held: Blocks) -> Floats:
        """Bytes of weights, gradients and optimizer states by ZeRO's stage, the optimizer here or on the host."""
        chunks = [[look.programs[b] for b in blocks] for blocks in held]
        table = np.empty((4, 2))
        for zero, host in product(range(4), (False, True)):
            offload: tuple[Offload, ...] = ("optimizer",) if host else ()
            parts = states_of(
                chunks,
                strategy=replace(look.request.strategy, zero=zero, offload=offload),  # type: ignore[arg-type]
                runtime=self.request.runtime,
                precision=self._precision,
                optimizer=self.request.optimizer,
            )
            table[zero, int(host)] = sum(sum(part.values()) for part in parts.values())
        return table

    def _updates(self, look: Look, held: Blocks) -> Floats:
        """Bytes that updates on the host need there, by ZeRO's stage; nothing where none are made there."""
        offloads = any("optimizer" in OFFLOADS[name] for name in self.axes.offload)
        if not offloads or not self.request.optimizer:
            return np.zeros(4)
        chunks = [[look.programs[b] for b in blocks] for blocks in held]
        strategies = [replace(look.request.strategy, zero=zero) for zero in range(4)]  # type: ignore[arg-type]
        runtime = self.request.runtime
        needed = [updates_of(chunks, strategy=s, runtime=runtime, precision=self._precision) for s in strategies]
        return np.array([sum(parts.values()) for parts in needed])

    def _prepared(self, look: Look, programs: tuple[BlockProgram, ...], pieces: Blocks, way: Way) -> Prepared:
        slots, _ = _slots(way, look.family.degrees.pp, look.family.num_microbatches)[0]
        return Prepared(
            mesh=look.mesh,
            precision=self._precision,
            programs=programs,
            pieces=[Stage(blocks=blocks) for blocks in pieces],
            slots=slots,
            micro_batch=look.family.micro_batch,
        )

    def _device_bytes(self, request: Request, tensors: Floats) -> Floats:
        """All that a device of each stage holds: ``tensors``, and what else there is."""
        fixed = sum(other_of(0.0, strategy=request.strategy, runtime=request.runtime).values())
        other = fixed + request.runtime.allocator_overhead * tensors
        calibration = request.cluster.calibration
        if calibration is not None:
            other = np.maximum(0.0, other + (calibration.memory_share - 1.0) * (tensors + other))
        return tensors + other

    def _outline(self, look: Look, cut: _Cut, batch: Batch, sharing: Sharing) -> Outline:
        way = batch.way
        alike = look.mesh, sharing.zero, look.busy
        hosts = tuple("optimizer" in offload for offload in self._endings(look.family))
        key = *alike, way.route, cut.pieces, hosts, way.splits
        if key not in self._outlines:
            request = replace(look.request, strategy=look.strategy(batch, sharing))
            prepared = self._prepared(look, stand_ins(look.programs), cut.pieces, way)
            layout = Layout(request=request, prepared=prepared)
            self._outlines[key] = self._outliner.outline(layout, alike, hosts, split=way.splits)
        return self._outlines[key]

    def _messages(self, look: Look, outline: Outline) -> Ints:
        """Works of the messages between pieces; the last stands for those that are not sent."""
        sent = [
            Transfer(nbytes=look.programs[block].boundary_bytes, crosses_nodes=crosses, sharing=sharing)
            for block, crosses, sharing in outline.links
        ]
        return np.array([*map(self.works.number, sent), self._sending])


@lru_cache(maxsize=4096)
def _stages(way: Way, pp: int) -> list[Ints]:
    """The stage of every piece, for each route."""
    routes = load_schedule(way.schedule).routes(pp, way.chunks)
    return [np.array([stage for stage, _ in route]) for route in routes]


@lru_cache(maxsize=65536)
def _slots(way: Way, pp: int, microbatches: int) -> tuple[tuple[Skeleton, Slots], ...]:
    """The slots that stand for so many microbatches; nothing where the schedule cannot serve them."""
    try:
        counts = dict.fromkeys(shortened(pp, microbatches))
        return tuple(slots_of(way.schedule, pp, count, way.chunks) for count in counts)
    except StrategyError:
        return ()


def _extrapolated(of: Callable[[Slots], Any], way: Way, family: Family) -> Any:
    """What ``of`` says of a family's microbatches, from fewer of them where it grows evenly."""
    pp, microbatches = family.degrees.pp, family.num_microbatches
    (_, few), *more = _slots(way, pp, microbatches)
    found = of(few)
    if more:
        first, second = shortened(pp, microbatches)
        found = found + (microbatches - first) / (second - first) * (of(more[0][1]) - found)
    return found


def _seconds(simulate: Callable[[Slots], tuple[Floats, Floats]], way: Way, family: Family) -> Floats:
    """The step of a family's microbatches, from fewer of them once it repeats itself from round to round."""
    pp, microbatches = family.degrees.pp, family.num_microbatches
    (_, few), *more = _slots(way, pp, microbatches)
    found, busy = simulate(few)
    if not more:
        return found
    longer, busier = simulate(more[0][1])
    if not repeats(longer - found, busier - busy) and microbatches * way.pieces <= _MOST_PIECES:
        return simulate(slots_of(way.schedule, pp, microbatches, way.chunks)[1])[0]
    first, second = shortened(pp, microbatches)
    grown: Floats = found + (microbatches - first) / (second - first) * (longer - found)
    return grown
