"""Lowering: the only place where graph, strategy, runtime and cluster meet.

A slot of the pipeline schedule is one pass of one microbatch through one chunk of layers. Each kind of slot has one
template of tasks. Templates are copied side by side and shifted, so lowering a million tasks takes a few array
operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import numpy as np

from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.graph.optimizers import optimizer_called
from traincast.strategy.exchange.buckets import cut_buckets
from traincast.strategy.exchange.rendezvous import rough_message, timetable
from traincast.strategy.exchange.replicas import Exchange
from traincast.strategy.exchange.shards import BlockingShards
from traincast.strategy.memory.fits import MemoryNeed, need_of
from traincast.strategy.memory.peak import Memory
from traincast.strategy.plan import Category, Ints, Plan
from traincast.strategy.plan_builder import Grain, PlacedTemplates, PlanBuilder
from traincast.strategy.prepare import Prepared, Request, chunks_of, memory_by_stage, prepare
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.host_work import sample_launches
from traincast.strategy.program.item import Behind, Item
from traincast.strategy.schedules import Pass, load_schedule
from traincast.strategy.template import Issue, SlotPart, WorkRun
from traincast.strategy.variants import Variants
from traincast.work import HostCopy, HostUpdate, Launch, Transfer, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A plan, with the request and the intermediate results that it was made from.

    ``memory`` has the memory of one rank of each stage; ``need`` compares it with devices and hosts. ``variants`` are
    the works of ranks that differ, if they do.
    """

    request: Request
    prepared: Prepared
    plan: Plan
    memory: tuple[Memory, ...]
    need: MemoryNeed
    variants: Variants | None = None


def lower(request: Request, *, grain: Grain = "segment") -> Lowered:
    """Lays out one training step as a folded plan, with one row per pipeline stage.

    Raises :class:`StrategyError` if the model, the batch or the cluster cannot be divided as the strategy asks.
    """
    prepared = prepare(request)
    plan = Layout(request=request, prepared=prepared).plan(grain)
    memory = memory_by_stage(request, prepared)
    need = need_of(memory, strategy=request.strategy, runtime=request.runtime, cluster=request.cluster)
    return Lowered(request=request, prepared=prepared, plan=plan, memory=memory, need=need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The works and messages of every slot of one step."""

    request: Request
    prepared: Prepared

    def plan(self, grain: Grain) -> Plan:
        """Lays out all slots, then each stage's gradient exchange and optimizer."""
        slots = self.prepared.slots
        out = PlanBuilder(self.prepared.mesh, grain, self.request.runtime)
        syncs = slots.makes if self.syncs_always else slots.last
        codes = ((slots.piece * len(Pass) + slots.what) * 2 + syncs) * 2 + slots.first
        used, number = np.unique(codes, return_inverse=True)
        templates = np.array([self._template(out, int(code)) for code in used], dtype=np.int64)
        finishing = {stage: out.template(parts, Category.OPTIMIZER, "optimizer") for stage, parts in self._ends()}
        sends = slots.link >= 0
        links, which = np.unique(
            np.stack([slots.way, slots.link, slots.what != Pass.FORWARD])[:, sends], axis=1, return_inverse=True
        )
        transfers = np.array([self._send(out, *map(int, link)) for link in links.T], dtype=np.int64)
        message = np.full(len(codes), -1, dtype=np.int64)  # the template of the transfer of each slot's result
        if len(transfers):
            message[sends] = transfers[which.ravel()]
        placed = self._by_rendezvous if self.request.runtime.exchange.rendezvous else self._in_turn
        return out.finish(placed(templates[number], message, finishing))

    def _in_turn(self, runs: Ints, message: Ints, finishing: dict[int, int]) -> PlacedTemplates:
        """Places a slot, the transfer of its result if it sends one, then the next slot."""
        slots, sends = self.prepared.slots, message >= 0
        at = np.arange(len(runs)) + np.concatenate([[0], np.cumsum(sends)[:-1]])
        count = len(runs) + int(sends.sum())
        template, row, microbatch = (np.full(count + len(finishing), -1, dtype=np.int64) for _ in range(3))
        wait = np.full(count + len(finishing), -1, dtype=np.int64)
        template[at], row[at], microbatch[at] = runs, slots.stage, slots.microbatch
        wait[at] = np.where(slots.source >= 0, at[slots.source] + sends[slots.source], -1)
        after = at[sends] + 1
        row[after], microbatch[after], wait[after] = slots.stage[sends], slots.microbatch[sends], at[sends]
        template[after] = message[sends]
        for n, (stage, ending) in enumerate(finishing.items()):
            template[count + n], row[count + n] = ending, stage
            wait[count + n] = at[np.flatnonzero(slots.makes & (slots.stage == stage))[-1]]
        return PlacedTemplates(template=template, row=row, microbatch=microbatch, wait=wait, collects=count)

    def _by_rendezvous(self, runs: Ints, message: Ints, finishing: dict[int, int]) -> PlacedTemplates:
        """Places slots and transfers in the order in which stages post them and wait for them."""
        strategy, slots = self.request.strategy, self.prepared.slots
        pieces = [[self.prepared.programs[b] for b in piece.blocks] for piece in self.prepared.pieces]
        rough = rough_message(pieces, self.request.cluster)
        table = timetable(strategy.schedule, strategy.pp, strategy.num_microbatches, chunks_of(strategy), rough)
        count, ends = len(table.slot), np.array(list(finishing.values()), dtype=np.int64)
        stages = np.array(list(finishing), dtype=np.int64)
        joins = [(count + n, place) for n, stage in enumerate(finishing) for place in table.last[stage]]
        tied = [stage for stage in finishing if stage in self.tied_stages]
        ending = {stage: count + n for n, stage in enumerate(finishing)}
        joins += [(ending[a], place) for a in tied for b in tied if a != b for place in table.last[b]]
        return PlacedTemplates(
            template=np.concatenate([np.where(table.sends, message[table.slot], runs[table.slot]), ends]),
            row=np.concatenate([slots.stage[table.slot], stages]),
            microbatch=np.concatenate([slots.microbatch[table.slot], np.full(len(ends), -1)]),
            wait=np.full(count + len(ends), -1, dtype=np.int64),
            joins=np.concatenate([table.joins, np.array(joins, dtype=np.int64).reshape(-1, 2)]),
            collects=count,
        )

    def _template(self, out: PlanBuilder, code: int) -> int:
        """The template of one kind of slot; ``code`` holds piece, pass, whether it syncs, whether it is the first."""
        rest, first = divmod(code, 2)
        rest, sync = divmod(rest, 2)
        piece, what = divmod(rest, len(Pass))
        return out.template(self.slot(piece, Pass(what), sync=bool(sync), first=bool(first)), *_NAMES[Pass(what)])

    @property
    def syncs_always(self) -> bool:
        """Whether gradients are exchanged after every microbatch: a rank with a shard cannot sum whole gradients."""
        strategy = self.request.strategy
        return strategy.zero == 2 or strategy.sync_each or (strategy.zero == 3 and strategy.reshard)

    def _ends(self) -> list[tuple[int, list[SlotPart]]]:
        return [(stage, parts) for stage in range(self.request.strategy.pp) if (parts := self.finish(stage))]

    def _send(self, out: PlanBuilder, way: int, piece: int, backward: int) -> int:
        work = self.transfer(way, piece, backward=bool(backward))
        return out.send(work, backward=bool(backward), paired=self.pairs_passes)

    @property
    def pairs_passes(self) -> bool:
        """Whether the schedule runs forwards and backwards in pairs, beside whose compute messages travel."""
        return load_schedule(self.request.strategy.schedule).pairs is not None

    def transfer(self, way: int, piece: int, *, backward: bool = False) -> Transfer:
        """The message between ``piece`` and the next one; activations and their gradients have the same size."""
        mesh, route = self.prepared.mesh, self.prepared.slots.routes[way]
        here, there = (mesh.node_of(mesh.rank(pp=route[p][0])) for p in (piece, piece + 1))
        per_node = mesh.devices_per_node // mesh.domain_nodes
        sharing = min(per_node, mesh.num_ranks // mesh.pp) if here != there else 1
        nbytes = self.prepared.programs[self.prepared.pieces[piece].blocks[-1]].boundary_bytes
        to_stage = (route[piece][0] if backward else route[piece + 1][0]) if mesh.mixed else -1
        return Transfer(nbytes=nbytes, crosses_nodes=here != there, sharing=sharing, to_stage=to_stage)

    def slot(self, piece: int, what: Pass, *, sync: bool, first: bool) -> list[SlotPart]:
        """The works of a slot in order; ``sync``: it exchanges gradients; ``first``: it is the first microbatch."""
        return self._with_slot_launches(self._slot(piece, what, sync=sync, first=first))

    def _slot(self, piece: int, what: Pass, *, sync: bool, first: bool) -> list[SlotPart]:
        """The works of a slot, and the parameters and gradients that are sent meanwhile."""
        programs = [self.prepared.programs[b] for b in self._blocks(piece, what)]
        if self.request.strategy.zero == 3 and self.exchange.needed:
            sharded = self._sharded if self.request.runtime.exchange.overlap_shards else self._sharded_in_line
            return self._slowed(sharded(piece, what, sync=sync, first=first))
        exchange = self.exchange
        overlapped = sync and exchange.needed and self.request.runtime.exchange.overlap_gradients
        if not overlapped:
            parts = [p.items(what) for p in programs]
            if sync and self.syncs_always and exchange.needed:
                dense, experts = _parameters(programs)
                parts.append((*exchange.squeezed(dense + experts), *exchange.at_the_end(dense, experts)))
            return [WorkRun(parts=parts)]
        if self.request.runtime.exchange.bucket_cut == "parameter":
            return self._slowed(self._by_parameter(programs, what))
        slot: list[SlotPart] = []
        pending: list[tuple[Item, ...]] = []
        dense = experts = 0.0
        sent: dict[tuple[float, float], list[Issue]] = {}
        for number, program in enumerate(programs):
            pending.append(program.items(what))
            dense, experts = dense + program.dense_parameters, experts + program.expert_parameters
            full = self.prepared.precision.gradient_bytes(dense + experts) >= self.request.runtime.exchange.bucket_bytes
            if dense + experts and (full or number == len(programs) - 1):
                squeezed = tuple(self._squeezed(dense + experts))
                slot += [WorkRun(parts=[*pending, squeezed] if squeezed else pending)]
                if (dense, experts) not in sent:
                    sent[dense, experts] = exchange.gradients(dense, experts)
                slot += sent[dense, experts]
                pending, dense, experts = [], 0.0, 0.0
        if any(pending):
            slot.append(WorkRun(parts=pending))
        return self._slowed(slot)

    def _blocks(self, piece: int, what: Pass) -> tuple[int, ...]:
        """The blocks of a piece in the order in which a pass runs them."""
        blocks = self.prepared.pieces[piece].blocks
        return blocks if what is Pass.FORWARD else tuple(reversed(blocks))

    def _by_parameter(self, programs: list[BlockProgram], what: Pass) -> list[SlotPart]:
        """A backward pass whose buckets close between two parameters."""
        runtime, exchange = self.request.runtime, self.exchange
        buckets = cut_buckets(
            programs,
            what,
            nbytes=self.prepared.precision.gradient_bytes,
            first=runtime.exchange.first_bucket_bytes or runtime.exchange.bucket_bytes,
            others=runtime.exchange.bucket_bytes,
        )
        slot: list[SlotPart] = []
        for bucket in buckets:
            squeezed = tuple(self._squeezed(bucket.share.total)) if bucket.share.total else ()
            slot.append(WorkRun(parts=[*bucket.parts, squeezed] if squeezed else bucket.parts))
            if bucket.share.total:
                slot += exchange.gradients(*bucket.share)
        return slot

    @property
    def exchange(self) -> Exchange:
        """The exchange between replicas."""
        return Exchange(
            mesh=self.prepared.mesh,
            strategy=self.request.strategy,
            runtime=self.request.runtime,
            precision=self.prepared.precision,
        )

    def _slowed(self, slot: list[SlotPart]) -> list[SlotPart]:
        """Adds to each run of works its slowdown by traffic that was issued just before and runs at the same time."""
        slowdown = self.request.cluster.interference
        result: list[SlotPart] = []
        running: list[Issue] = []
        gathers = 0
        for each in slot:
            if isinstance(each, Issue):
                running.append(each)
                result.append(each)
                gathers += each.gather
                continue
            works = tuple(item.work for part in each.parts for item in part if isinstance(item.work, Operator))
            awaited = 0 if each.wait is None else each.wait + 1
            done = awaited - (gathers - sum(issue.gather for issue in running))  # gathers that must have ended by now
            beside = [issue for issue in running if not issue.gather or (done := done - 1) < 0]
            extra = tuple(
                Item(
                    work=issue.work,
                    launches=Launch(),
                    label=f"beside {issue.label}",
                    behind=Behind(works=works, interference=slowdown, waited=False),
                )
                for issue in beside
                if works and slowdown > 0.0
            )
            result.append(replace(each, parts=[*each.parts, extra]) if extra else each)
            running = []
        return result

    def _with_slot_launches(self, slot: list[SlotPart]) -> list[SlotPart]:
        """Makes the first work of a slot wait for the host's work once per microbatch and pass."""
        extra = Launch(blocks=self.request.runtime.launches.microbatch)
        for n, each in enumerate(slot):
            if extra.blocks and isinstance(each, WorkRun) and each.parts and each.parts[0]:
                first, *rest = each.parts[0]
                begun = (replace(first, launches=first.launches + extra), *rest)
                return [*slot[:n], replace(each, parts=[begun, *each.parts[1:]]), *slot[n + 1 :]]
        return slot

    def _sharded_in_line(self, piece: int, what: Pass, *, sync: bool, first: bool) -> list[SlotPart]:
        """ZeRO-3 / FSDP whose compute waits for every gather and every reduction."""
        request, graph = self.request, self.request.graph
        blocks = self._blocks(piece, what)
        layers = {
            n for n, block in enumerate(graph.blocks) if block.repeated or not request.runtime.exchange.root_shard
        }
        shards = BlockingShards(
            exchange=self.exchange,
            programs=[self.prepared.programs[b] for b in blocks],
            root=[b not in layers and b < len(graph.blocks) for b in blocks],
            prefetch=self._prefetch,
            squeeze=self._squeezed,
        )
        return [shards.run(what, gathers=self._gathers(what, first=first), reduces=sync)]

    def _sharded(self, piece: int, what: Pass, *, sync: bool, first: bool) -> list[SlotPart]:
        """ZeRO-3 / FSDP: gathers a block's parameters ahead of its use, and reduces its gradients afterwards."""
        programs = [self.prepared.programs[b] for b in self._blocks(piece, what)]
        needed, prefetch = self._gathers(what, first=first), self._prefetch
        exchange = self.exchange
        distinct = {id(p): p for p in programs}  # all repetitions of a block are the same object
        runs = {key for key, p in distinct.items() if what is Pass.FORWARD or p.backward}
        gathered = {key: exchange.gather(p) if needed and key in runs else [] for key, p in distinct.items()}
        reduced = {key: exchange.gradients(p.dense_parameters, p.expert_parameters) for key, p in distinct.items()}
        gathers = [gathered[id(p)] for p in programs]
        starts = list(accumulate((len(g) for g in gathers), initial=0))
        slot: list[SlotPart] = [issue for group in gathers[: 1 + prefetch] for issue in group]
        for n, program in enumerate(programs):
            items = program.items(what)
            reduces = sync and program.num_parameters > 0
            squeezed = tuple(self._squeezed(program.num_parameters)) if reduces else ()
            if items:
                wait = starts[n + 1] - 1 if gathers[n] else None
                slot.append(WorkRun(parts=[items, squeezed] if squeezed else [items], wait=wait))
            if n + 1 + prefetch < len(programs):
                slot += gathers[n + 1 + prefetch]
            if reduces:
                slot += reduced[id(program)]
        return slot

    def _gathers(self, what: Pass, *, first: bool) -> bool:
        """Whether a pass gathers sharded parameters; without resharding, only the first forward does."""
        kept = not self.request.strategy.reshard and not (what is Pass.FORWARD and first)
        return what is not Pass.WEIGHT and not kept

    @property
    def _prefetch(self) -> int:
        """The number of blocks whose parameters are gathered ahead."""
        chosen = self.request.strategy.prefetch
        return self.request.runtime.defaults.prefetch_blocks if chosen < 0 else chosen

    def _squeezed(self, parameters: float) -> list[Item]:
        """Compresses gradients before their exchange. They are expanded after each exchange, or once at the end."""
        return self.exchange.squeezed(parameters) if self.syncs_always else self.exchange.squeeze(parameters)

    def finish(self, stage: int) -> list[SlotPart]:
        """The part of the gradient exchange that did not overlap, then the optimizer, then ZeRO's parameter gather."""
        request = self.request
        programs = [program for chunk in self.prepared.held(stage) for program in chunk]
        dense, experts = _parameters(programs)
        if not dense + experts:
            return []
        items: list[Item] = []
        exchange = self.exchange
        late = not self.syncs_always and request.strategy.zero < 3 and not request.runtime.exchange.overlap_gradients
        if exchange.needed and late:
            items += exchange.squeeze(dense + experts)
            items += exchange.at_the_end(dense, experts)
        if exchange.needed and dense and exchange.sums_copies_last:
            items += exchange.copies_last(dense)
        if not self.syncs_always:
            items += exchange.squeeze(dense + experts, back=True)
        if stage in self.tied_stages:
            items += exchange.between_ends(self._tied)
        if len(self.prepared.slots.routes) > 1:
            owned = exchange.owned(dense, experts)
            items += exchange.between_copies(self.prepared.precision.gradient_bytes(owned), stage)
        if request.optimizer:
            items += self._update(programs, dense, experts)
        items += self._between_steps()
        return [WorkRun(parts=[tuple(items)])] if items else []

    @property
    def tied_stages(self) -> tuple[int, ...]:
        """The first and the last stage, if each has a copy of tied weights whose gradients they must add up.

        Pipelines that run both ways, or whose last piece is on the first stage, have all copies on one stage.
        """
        routes = self.prepared.slots.routes
        (first, _), (last, _) = routes[0][0], routes[0][-1]
        return (first, last) if self._tied and len(routes) == 1 and first != last else ()

    @property
    def _tied(self) -> float:
        return sum(self.prepared.programs[b].tied_parameters for b in self.prepared.pieces[-1].blocks)

    def _between_steps(self) -> list[Item]:
        """The host's work for which the device waits at the end of a step; longer if other ranks use the same host."""
        runtime, mesh, graph = self.request.runtime, self.prepared.mesh, self.request.graph
        updates = runtime.launches.parameter * sum(b.count * len(b.optimizer) for b in graph.blocks) / mesh.pp
        samples = self.prepared.micro_batch * self.request.strategy.num_microbatches
        others = min(mesh.num_ranks, mesh.devices_per_node) - 1
        crowded = runtime.launches.crowding * others * (updates + samples * sample_launches(graph.name))
        updated = updates + crowded if self.request.optimizer else 0.0
        beside = 0.0 if self.request.strategy.servers else runtime.launches.step  # workers wait for servers meanwhile
        launches = Launch(blocks=updated + beside)
        return [Item(work=launches, launches=Launch(), label="update on the host")] if launches.blocks else []

    def _update(self, programs: list[BlockProgram], dense: float, experts: float) -> list[Item]:
        """The updates of all optimizers, one after the other, then ZeRO's gather of parameters."""
        owned = self.exchange.owned(dense, experts)
        names = list(dict.fromkeys(u.optimizer for p in programs for u in p.updated if u.parameters)) or ["adamw"]
        parts = {name: sum(u.parameters for p in programs for u in p.updated if u.optimizer == name) for name in names}
        items: list[Item] = []
        for name in names:
            own = owned * parts[name] / sum(parts.values()) if len(names) > 1 else owned
            items += self._elements(name, own, kernels=len(programs))
            items += self._matrices(name, programs, share=owned / (dense + experts))
        return items + self.exchange.parameters(dense, experts)

    def _elements(self, name: str, owned: float, *, kernels: int) -> list[Item]:
        """The passes of an optimizer over the elements of ``owned`` weights, on the device or on its host."""
        states = optimizer_called(name).states
        spec = TensorSpec((max(1, int(owned)),), DType.FP32)
        update = Operator(
            name=name,
            kind=OpKind.OPTIMIZER,
            phase=Phase.OPTIMIZER,
            inputs=(spec,) * (2 + states),
            outputs=(spec,) * (1 + states),
            parameters=(spec,),
        )
        update = replace(self.prepared.precision.apply(update), parameters=())
        label = f"optimizer {name}"
        if "optimizer" in self.request.strategy.offload:
            precision = self.prepared.precision
            moved = precision.gradient_bytes(owned), update.nbytes, precision.weight_bytes(owned)
            works: tuple[Work, ...] = HostCopy(nbytes=moved[0]), HostUpdate(nbytes=moved[1]), HostCopy(nbytes=moved[2])
            labels = ("offload gradients", f"{label} on the host", "offload weights")
            return [
                Item(work=w, launches=Launch(kernels=1.0), label=said) for w, said in zip(works, labels, strict=True)
            ]
        apart = self.request.runtime.launches.operator > 0  # whether a host launches what the device runs
        items = [Item(work=update, launches=Launch(kernels=float(kernels * apart)), label=label)]
        return items * self.request.runtime.kernels.update_passes

    def _matrices(self, name: str, programs: list[BlockProgram], *, share: float) -> list[Item]:
        """The products of an optimizer of matrices, on the ``share`` of the matrices that the rank updates.

        ZeRO gives whole matrices to ranks. ZeRO-3 first gathers their gradients, in 16 bits.
        """
        matrix, dtype = optimizer_called(name).matrix, optimizer_called(name).products
        updated = [u for p in programs for u in p.updated if u.optimizer == name]
        if matrix is None or not any(matrix(*sides).products for u in updated for _, *sides in u.matrices):
            return []
        items = []
        if self.request.strategy.zero == 3:
            experts = sum(u.experts for u in updated)
            items += self.exchange.matrices(sum(u.parameters for u in updated) - experts, experts)
        counts: dict[tuple[int, int], float] = {}
        for u in updated:
            for count, rows, columns in u.matrices:
                counts[rows, columns] = counts.get((rows, columns), 0.0) + count
        apart = self.request.runtime.launches.operator > 0
        for (rows, columns), count in counts.items():
            for product in matrix(rows, columns).products:
                times = max(1, round(count * share * product.times))
                shapes = (
                    (product.rows, product.inner),
                    (product.inner, product.columns),
                    (product.rows, product.columns),
                )
                left, right, result = (TensorSpec((times, *shape), dtype) for shape in shapes)
                work = Operator(
                    name="bmm",
                    kind=OpKind.BATCHED_GEMM,
                    phase=Phase.OPTIMIZER,
                    inputs=(left, right),
                    outputs=(result,),
                )
                launches = Launch(kernels=float(times * apart))
                items.append(Item(work=work, launches=launches, label=f"optimizer {name}: products of matrices"))
        return items


def _parameters(programs: list[BlockProgram]) -> tuple[float, float]:
    """The numbers of trained parameters outside and inside the experts."""
    return sum(p.dense_parameters for p in programs), sum(p.expert_parameters for p in programs)


_NAMES: Final = {
    Pass.FORWARD: (Category.FORWARD, "forward"),
    Pass.BACKWARD: (Category.BACKWARD, "backward"),
    Pass.INPUT: (Category.BACKWARD, "backward of inputs"),
    Pass.WEIGHT: (Category.BACKWARD, "backward of weights"),
}
"""The category of each pass, and the label of its segments."""
