"""Evaluation in bulk: memory and seconds of whole families of strategies.

What a single forecast makes anew is shared here: works are estimated once per distinct shape over the whole search,
programs of blocks once per family, layouts once per way to cut and shard. What is left for each strategy is a compiled
loop over its slots. Memory comes first, so that what does not fit is never simulated.

A search puts steps together from templates of blocks (:mod:`traincast.searching.bulk.outline`). A runtime that cuts
buckets inside a block, or whose messages wait for both sides, does not fit these templates. Its members are laid out
and evaluated one by one, as single forecasts are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product

import numpy as np
import numpy.typing as npt

from traincast.errors import StrategyError
from traincast.searching.bulk.balance import balanced_layers
from traincast.searching.bulk.blocks import DEVICE, PASSES, BlockTable
from traincast.searching.bulk.family import NOT_RUN, Batch, Blocks, Cut, EvaluatedFamily, Fitting, Sharing
from traincast.searching.bulk.memory import MemberMemory
from traincast.searching.bulk.outline import Outline, Outliner, placeholders
from traincast.searching.bulk.rounds import slots_of_way, stages_of, step_of
from traincast.searching.bulk.steps import slots_of, step_seconds, timed
from traincast.searching.bulk.works import Works
from traincast.searching.space import OFFLOADS, Axes, Family, Way, ways
from traincast.simulate import Evaluator
from traincast.strategy import Request
from traincast.strategy.lower import Layout
from traincast.strategy.memory.peak import footprints_of
from traincast.strategy.mesh import Mesh
from traincast.strategy.prepare import (
    check_request,
    cut_pieces,
    kept_precision,
    layers_of,
    programs_of,
)
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.embedding_tables import has_tables
from traincast.strategy.program.experts import overlap_of_batches
from traincast.strategy.program.precision import Precision
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import Pass
from traincast.strategy.schedules.slots import merge_compiled
from traincast.strategy.stages import rough_seconds
from traincast.strategy.strategy import Offload
from traincast.work import Transfer, Work


def needs_whole_plans(runtime: Runtime) -> bool:
    """Whether steps of ``runtime`` are laid out as whole plans."""
    return runtime.exchange.rendezvous or runtime.exchange.bucket_cut != "block" or not runtime.exchange.overlap_shards


def run_whole(entry: EvaluatedFamily, works: Works, precision: Precision) -> None:
    """Fills in the seconds of all members that fit."""
    family = entry.family
    plans = []
    for batch in entry.batches:
        way, pieces = batch.way, entry.cuts[batch.cut].pieces
        slots, _ = slots_of(way.schedule, family.degrees.pp, family.num_microbatches, way.chunks)
        prepared = replace(entry.prepared(entry.programs_of(way), pieces, way, precision), slots=slots)
        for at in np.flatnonzero(batch.load <= 1.0).tolist():
            request = replace(entry.request, strategy=entry.strategy(batch, entry.sharings[at]))
            plan = Layout(request=request, prepared=prepared).plan("segment")
            plans.append((batch, at, plan, np.array([works.number(work) for work in plan.works], dtype=np.int64)))
    seconds = works.settle()
    for batch, at, plan, numbers in plans:
        batch.seconds[at] = Evaluator(plan)(seconds[numbers])


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Bulk:
    """Evaluates families of strategies of one request. Intermediate results are kept for the next family.

    ``estimate`` says what works take. Members whose forecast is more than ``most_memory`` bytes of a device, or that do
    not fit there or on the hosts with the margin that is asked for, are not simulated.
    """

    def __init__(
        self, request: Request, axes: Axes, estimate: Callable[[Sequence[Work]], Floats], *, most_memory: float
    ) -> None:
        self.request = request
        self.axes = axes
        self.works = Works(estimate)
        self._precision = kept_precision(request)
        self._memory = MemberMemory(request, axes, self._precision, most_memory=most_memory)
        self._layers = layers_of(request.graph)
        self._weights: dict[int, tuple[list[float], ShardedModel]] = {}
        self._tables: dict[int, tuple[BlockTable, tuple[BlockProgram, ...]]] = {}
        self._taken: dict[int, Floats] = {}
        self._outliner = Outliner(self.works, request.runtime)
        self._outlines: dict[tuple[object, ...], Outline] = {}
        merge_compiled.prefer()

    def prepare(self, family: Family) -> EvaluatedFamily | None:
        """Return the family with the programs of its blocks; ``None`` if no member is legal."""
        request = replace(self.request, strategy=family.strategy(self.request.strategy))
        try:
            check_request(request)
            mesh = Mesh.of(request.strategy, request.cluster)
            model, programs = programs_of(request, mesh)
        except StrategyError:
            return None
        strategy = request.strategy
        replicas = strategy.dp * strategy.cp > 1 or strategy.expert_replicas > 1
        return EvaluatedFamily(
            family=family,
            request=request,
            mesh=mesh,
            model=model,
            programs=programs,
            hiding=self._hiding(request, mesh, family),
            rough=self._rough(request, model, programs),
            busy=tuple(bool(program.items(what)) for program in programs for what in Pass),
            footprints=footprints_of(programs),
            sharings=[Sharing(*s) for s in product(self.axes.zero if replicas else (0,), self._endings(family))],
        )

    def _hiding(self, request: Request, mesh: Mesh, family: Family) -> dict[Way, tuple[BlockProgram, ...]]:
        """Return the programs of ways to run the pipeline that hide more of the experts' traffic than 1F1B does."""
        if mesh.pp == 1 or request.strategy.ep == 1:
            return {}
        near = mesh.span("ep").num_nodes == 1
        found = {}
        for way in ways(self.axes, mesh.pp, family.num_microbatches, self._layers):
            strategy = replace(request.strategy, schedule=way.schedule, virtual_stages=way.virtual_stages)
            if overlap_of_batches(strategy, request.runtime, near=near) is not None:
                found[way] = programs_of(replace(request, strategy=strategy), mesh)[1]
        return found

    def _rough(self, request: Request, model: ShardedModel, programs: tuple[BlockProgram, ...]) -> Sequence[float]:
        """Return the weights of blocks by which the model is cut."""
        key = id(model)
        if request.strategy.pp > 1 and key not in self._weights:
            self._weights[key] = rough_seconds(request.cluster.device, programs[: len(model.graph.blocks)]), model
        return self._weights[key][0] if request.strategy.pp > 1 else ()

    def estimate(self, entries: Iterable[EvaluatedFamily]) -> None:
        """Estimate the works of all blocks."""
        self._enter_works(programs for entry in entries for programs in (entry.programs, *entry.hiding.values()))

    def enter(self, entry: EvaluatedFamily, most_seconds: float = float("inf"), fitting: Fitting | None = None) -> bool:
        """Add the members that could take ``most_seconds`` at most, with their memory.

        ``fitting`` says which ways to run the family fit without its recomputation and offloading: these are left out,
        because both only cost time. Returns whether larger micro batches are worth trying: not if all members were
        tried and none fits.
        """
        device = self._runs(entry.programs)[:, DEVICE].reshape(-1, PASSES)
        each = device[:, Pass.FORWARD] + device[:, Pass.BACKWARD]
        balances = "balanced" in self.axes.cut and "/" not in entry.family.recompute
        known = fitting or {}
        if known:
            short = {zero for (_, zero), fits in known.items() if not fits}  # of memory, in one way or another
            entry.sharings = [sharing for sharing in entry.sharings if sharing.zero in short]
        for every in self._groups(entry.family):
            group = [w for w in every if not all(known.get((w, s.zero), False) for s in entry.sharings)]
            if not group:
                continue
            pieces = self._enter(entry, group, (), most_seconds)
            if pieces and balances and group[0].loops:
                layers = balanced_layers(entry.model.graph, pieces, each)
                if layers:
                    self._enter(entry, group, layers, most_seconds)
        seen_all = not entry.behind and not fitting
        return not seen_all or any(batch.load.min() <= 1.0 for batch in entry.batches)

    def fitting(self, entry: EvaluatedFamily) -> Fitting:
        """Return which ways to run a family fit, by ZeRO stage, without offloading."""
        found: Fitting = {}
        for batch in entry.batches:
            for sharing, load in zip(entry.sharings, batch.load.tolist(), strict=True):
                if not sharing.offload:
                    key = batch.way, sharing.zero
                    found[key] = found.get(key, True) and load <= 1.0
        return found

    def bounds(self, every: Sequence[Family]) -> Floats:
        """Return, for each family, seconds that no member can beat: its compute, spread evenly over the stages.

        Recomputation and offloading only add works. So only the works of the family without either, with the same mesh
        and micro batch, are estimated. The bound is infinite if that family is not legal.
        """
        simplest_of: dict[tuple[object, ...], tuple[ShardedModel, list[tuple[BlockProgram, ...]]] | None] = {}
        apart = has_tables(self.request.graph)  # the exchange of tables depends on the number of replicas

        def works_of(family: Family) -> tuple[object, ...]:
            hides = family.degrees.ep > 1 and family.degrees.pp > 1  # by its schedule, as long as it is filled
            filled = (family.degrees.pp, family.num_microbatches) if hides else ()
            return (*family.works, *((family.dp,) if apart else ()), *filled)

        for family in every:
            if works_of(family) not in simplest_of:
                simplest = replace(family, recompute="none", offloads_activations=False)
                request = replace(self.request, strategy=simplest.strategy(self.request.strategy))
                try:
                    mesh = Mesh.of(request.strategy, request.cluster)
                    model, programs = programs_of(request, mesh)
                    simplest_of[works_of(family)] = model, [programs, *self._hiding(request, mesh, simplest).values()]
                except StrategyError:
                    simplest_of[works_of(family)] = None
        self._enter_works(programs for found in simplest_of.values() if found for programs in found[1])
        shares: dict[tuple[object, ...], tuple[float, Floats]] = {}
        for key, found in simplest_of.items():
            shares[key] = self._shares(*found) if found else (float("inf"), np.zeros(0))
        bounds = []
        for family in every:
            whole, forwards = shares[works_of(family)]
            each = whole + sum(forwards[family.recomputed].tolist())
            bounds.append(each * family.num_microbatches / family.degrees.pp)
        return np.array(bounds)

    def _shares(self, model: ShardedModel, ways: list[tuple[BlockProgram, ...]]) -> tuple[float, Floats]:
        """Return the seconds of compute per microbatch, and those of each forward that may be recomputed.

        They are the least of all ``ways`` to run the blocks.
        """
        device = np.min([self._runs(programs)[:, DEVICE] for programs in ways], axis=0).reshape(-1, PASSES)
        blocks = model.graph.blocks
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
        """Return the costs of all passes of the blocks of ``programs``."""
        if id(programs) not in self._taken:
            self._taken[id(programs)] = self._tables[id(programs)][0].runs(self.works.seconds)
        return self._taken[id(programs)]

    def run(self, entries: Sequence[EvaluatedFamily]) -> None:
        """Simulate all members that fit."""
        if needs_whole_plans(self.request.runtime):
            for entry in entries:
                run_whole(entry, self.works, self._precision)
        else:
            self._run_outlines(entries)
        for entry in entries:
            for batch in entry.batches:
                batch.seconds[batch.load > 1.0] = NOT_RUN

    def _run_outlines(self, entries: Sequence[EvaluatedFamily]) -> None:
        """Simulate all members that fit, from outlines of their steps."""
        todo: list[tuple[EvaluatedFamily, list[Batch], int, Outline, Ints]] = []
        for entry in entries:
            groups: dict[tuple[int, bool, bool, int, int], list[Batch]] = {}
            endings = len(self._endings(entry.family))
            for batch in entry.batches:
                fits = (batch.load <= 1.0).reshape(-1, endings).any(axis=1)
                way = batch.way
                for at in np.flatnonzero(fits).tolist():
                    key = batch.cut, way.splits, way.pairs, id(entry.programs_of(way)), at * endings
                    groups.setdefault(key, []).append(batch)
            for (cut, *_, at), batches in groups.items():
                outline = self._outline(entry, entry.cuts[cut], batches[0], entry.sharings[at])
                todo.append((entry, batches, at, outline, self._messages(entry, outline)))
        seconds = self.works.settle()
        for entry, batches, at, outline, messages in todo:
            runs = self._runs(entry.programs_of(batches[0].way))
            durations = outline.durations(runs, seconds, seconds[messages])
            simulate = partial(step_seconds, outline=outline, templates=timed(outline, durations))
            for batch in batches:
                found = step_of(simulate, batch.way, entry.family)
                batch.seconds[at : at + len(found)] = found

    def _least(self, entry: EvaluatedFamily, pieces: Blocks, group: Sequence[Way]) -> list[float]:
        """Return a lower bound of the step in seconds, for each way of a group.

        A stage begins when the first microbatch has passed forward through all pieces before its own. It then computes
        all its passes. If backwards are whole, the last microbatch must still pass backward through the same pieces.
        """
        family, stages = entry.family, entry.family.degrees.pp
        sums: dict[int, tuple[Floats, Floats]] = {}
        found = []
        for way in group:
            programs = entry.programs_of(way)
            if id(programs) not in sums:
                device = self._runs(programs)[:, DEVICE].reshape(-1, PASSES)
                loads = {kind: device[list(kind)].sum(axis=0) for kind in set(pieces)}
                each = np.array([loads[blocks] for blocks in pieces])
                sums[id(programs)] = each[:, Pass.FORWARD], each[:, Pass.FORWARD] + each[:, Pass.BACKWARD]
            forward, both = sums[id(programs)]
            before = np.concatenate([[0.0], (forward if way.splits else both).cumsum()])
            routes, stage, first = _placed(way, stages)
            busy = np.bincount(stage, weights=np.tile(both / routes, routes), minlength=stages)
            found.append(float((before[first] + family.num_microbatches * busy).max()))
        return found

    def _groups(self, family: Family) -> list[list[Way]]:
        """Return the ways to run a family's pipeline, grouped by the cut of the model."""
        groups: dict[tuple[object, int], list[Way]] = {}
        for way in ways(self.axes, family.degrees.pp, family.num_microbatches, self._layers):
            groups.setdefault((way.route, way.pieces), []).append(way)
        return list(groups.values())

    def _endings(self, family: Family) -> list[tuple[Offload, ...]]:
        """Return the sets of offloaded states that a family may use."""
        offloads = [OFFLOADS[name] for name in self.axes.offload]
        return [o for o in offloads if ("activations" in o) == family.offloads_activations]

    def _enter(self, entry: EvaluatedFamily, group: list[Way], layers: tuple[int, ...], most_seconds: float) -> Blocks:
        """Add the members that run the model in this cut, with their memory; returns its pieces."""
        request, family = entry.request, entry.family
        if layers:
            request = replace(request, strategy=replace(request.strategy, layers=layers))
        try:
            stages = cut_pieces(request, entry.model, entry.programs, group[0].pieces, entry.rough)
        except StrategyError:
            return ()
        pieces = tuple(stage.blocks for stage in stages)
        if np.isfinite(most_seconds):
            least = zip(group, self._least(entry, pieces, group), strict=True)
            near = [way for way, seconds in least if seconds <= most_seconds]
            entry.behind += (len(group) - len(near)) * len(entry.sharings)
            group = near
        group = [way for way in group if slots_of_way(way, family.degrees.pp, family.num_microbatches)]
        if not group:
            return pieces
        entry.cuts.append(Cut(layers=layers, ways=group, pieces=pieces))
        entry.batches += self._memory.batches(entry, group, pieces)
        return pieces

    def _outline(self, entry: EvaluatedFamily, cut: Cut, batch: Batch, sharing: Sharing) -> Outline:
        way = batch.way
        alike = entry.mesh, sharing.zero, entry.busy
        hosts = tuple("optimizer" in offload for offload in self._endings(entry.family))
        key = *alike, way.route, cut.pieces, hosts, way.splits, way.pairs
        if key not in self._outlines:
            request = replace(entry.request, strategy=entry.strategy(batch, sharing))
            prepared = entry.prepared(placeholders(entry.programs), cut.pieces, way, self._precision)
            layout = Layout(request=request, prepared=prepared)
            self._outlines[key] = self._outliner.outline(layout, alike, hosts, split=way.splits)
        return self._outlines[key]

    def _messages(self, entry: EvaluatedFamily, outline: Outline) -> Ints:
        """Return the transfer works of each link between stages."""
        sent = [
            Transfer(nbytes=entry.programs[block].boundary_bytes, crosses_nodes=crosses, sharing=sharing)
            for block, crosses, sharing in outline.links
        ]
        return np.array([self.works.number(work) for work in sent], dtype=np.int64)


@lru_cache(maxsize=4096)
def _placed(way: Way, stages: int) -> tuple[int, Ints, Ints]:
    """Return the number of routes, the stage of every piece, route by route, and the first piece of each stage."""
    routes = stages_of(way, stages)
    first = np.full(stages, len(routes[0]))
    for route in routes:
        np.minimum.at(first, route, np.arange(len(route)))
    return len(routes), np.concatenate(routes), first
