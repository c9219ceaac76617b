"""The exchange between replicas: gradients, and the parameters that ZeRO shards among them.

For Ψ bytes of parameters, a rank sends per step (Rajbhandari et al. 2020): 2Ψ for an all-reduce of gradients; 2Ψ with
ZeRO-1 and 2, which reduce-scatter gradients and gather parameters; 3Ψ with ZeRO-3, which gathers parameters twice.
Hybrid sharding, over fewer than all replicas, does this among the ranks that share the states, and all-reduces each
share among the ranks that hold the same share. Experts have replicas of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy
from traincast.strategy.template import Issue
from traincast.work import Collective, CollectiveKind, Launch, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Makes the collectives between replicas, for one mesh and one way to shard."""

    mesh: Mesh
    strategy: Strategy
    runtime: Runtime
    precision: Precision

    @property
    def replicas(self) -> int:
        """Replicas of all layers that are not experts."""
        return self.mesh.dp * self.mesh.cp

    @property
    def needed(self) -> bool:
        """Whether collectives exchange gradients: not with one replica, and not with parameter servers."""
        return not self.strategy.servers and (self.replicas > 1 or self.strategy.expert_replicas > 1)

    def gradients(self, dense: float, experts: float) -> list[Issue]:
        """The exchange of the gradients of ``dense`` and ``experts`` parameters, issued while compute goes on."""
        return [
            Issue(work=work, label=label, group=group) for work, label, group in self._gradients(dense, experts)
        ]  # fmt: skip

    def at_the_end(self, dense: float, experts: float) -> list[Item]:
        """The same exchange in buckets, one after the other, when all gradients exist."""
        items: list[Item] = []
        per_bucket = max(1.0, self.runtime.exchange.bucket_bytes / self.precision.gradients.nbytes)
        for total, of_experts in ((dense, False), (experts, True)):
            rest = total
            while rest > 0:
                part = min(rest, per_bucket)
                items += [
                    self._item(work, label, group)
                    for work, label, group in self._gradients(*((0.0, part) if of_experts else (part, 0.0)))
                ]
                rest -= part
        return items

    def gather(self, *programs: BlockProgram) -> list[Issue]:
        """ZeRO-3: gathers the parameters of blocks, trained and frozen, in the dtype of the computation."""
        size = self.precision.activations.nbytes
        dense = sum(p.dense_parameters * size + p.frozen.gathered for p in programs)
        experts = sum(p.expert_parameters * size + p.frozen_experts.gathered for p in programs)
        found = self._over(dense, experts, "all_gather", 1.0)
        return [Issue(work=work, label=f"dp {work.kind}", group=group, gather=True) for work, group in found]

    def parameters(self, dense: float, experts: float) -> list[Item]:
        """ZeRO-1 and 2: gathers the parameters after each rank has updated its share."""
        if self.strategy.zero not in (1, 2) or self.strategy.servers:
            return []
        found = self._over(dense, experts, "all_gather", self.precision.weights.nbytes)
        return [self._item(work, "dp parameters", group) for work, group in found]

    def matrices(self, dense: float, experts: float) -> list[Item]:
        """Gathers the gradients of whole matrices, in the dtype of activations, for an optimizer of matrices."""
        found = self._over(dense, experts, "all_gather", self.precision.activations.nbytes)
        return [self._item(work, "dp matrices", group) for work, group in found]

    def owned(self, dense: float, experts: float) -> float:
        """The number of parameters whose optimizer states one rank keeps and updates."""
        if not self.strategy.zero:
            return dense + experts
        return dense / self.mesh.shard + experts / self.strategy.expert_replicas

    def squeezed(self, parameters: float) -> list[Item]:
        """Compresses gradients before they are sent, and expands those that arrive."""
        return [*self.squeeze(parameters), *self.squeeze(parameters, back=True)]

    def squeeze(self, parameters: float, *, back: bool = False) -> list[Item]:
        """One pass over gradients: compresses those to be sent or, with ``back``, expands those that arrive."""
        if self.strategy.compression >= 1.0 or not self.needed:
            return []
        whole = TensorSpec((max(1, int(parameters)),), self.precision.gradients)
        small = TensorSpec((max(1, int(parameters * self.strategy.compression)),), self.precision.gradients)
        work = Operator(
            name="decompress_gradients" if back else "compress_gradients",
            kind=OpKind.ELEMENTWISE,
            phase=Phase.BACKWARD,
            inputs=(small,) if back else (whole, whole),  # compression adds the part that was not sent last time
            outputs=(whole,) if back else (small, whole),
        )
        return [
            Item(work=work, launches=Launch(kernels=self.runtime.launches.operator), label=work.name.replace("_", " "))
        ]

    def between_copies(self, nbytes: float, stage: int) -> list[Item]:
        """Sums the gradients of two copies of a piece: on ``stage``, and on its counterpart at the other end."""
        mesh = self.mesh
        far = mesh.node_of(mesh.rank(pp=mesh.pp - 1)) > 0
        per_node = mesh.devices_per_node // mesh.domain_nodes
        work = Transfer(
            nbytes=nbytes,
            crosses_nodes=far,
            sharing=min(per_node, mesh.num_ranks),
            to_stage=mesh.pp - 1 - stage if mesh.mixed else -1,
        )
        return [
            Item(
                work=work,
                launches=Launch(collectives=self.runtime.launches.collective),
                label="pp gradients of the other copy",
            )
        ]

    def between_ends(self, tied: float) -> list[Item]:
        """Sums the gradients of ``tied`` weights: the first and the last stage of a pipeline each have a copy of these.

        Megatron-LM, DeepSpeed and users of ``torch.distributed.pipelining`` do so by an all-reduce of two ranks after
        the gradients of replicas have been summed.
        """
        mesh = self.mesh
        far = mesh.node_of(mesh.rank(pp=0)) != mesh.node_of(mesh.rank(pp=mesh.pp - 1))
        per_node = mesh.devices_per_node // mesh.domain_nodes
        nbytes = self.precision.gradient_bytes(tied / (mesh.shard if self.strategy.zero == 3 else 1))
        work = Collective(
            kind="all_reduce",
            nbytes=nbytes,
            num_ranks=2,
            num_nodes=2 if far else 1,
            sharing=min(per_node, mesh.num_ranks // mesh.pp) if far else 1,
        )
        return [self._item(work, "pp gradients of tied weights", Group.RANK)]

    def _item(self, work: Collective, label: str, group: Group) -> Item:
        return Item(work=work, launches=Launch(collectives=self.runtime.launches.collective), label=label, group=group)

    def _gradients(self, dense: float, experts: float) -> list[tuple[Collective, str, Group]]:
        zero = self.strategy.zero
        kept = self.precision.activations if zero == 3 else self.precision.gradients
        sent = DType(self.runtime.exchange.reduce_dtype) if self.runtime.exchange.reduce_dtype else kept
        nbytes = sent.nbytes * self.strategy.compression
        kind: CollectiveKind = "reduce_scatter" if zero else "all_reduce"
        label = "dp reduce_scatter" if zero == 3 else "dp gradients"
        found = [(work, label, group) for work, group in self._over(dense, experts, kind, nbytes)]
        if dense and self._has_copies and not self.sums_copies_last:
            found.append(self._between_shards(dense * nbytes))
        return found

    @property
    def _has_copies(self) -> bool:
        """Whether there are several groups of replicas, each of which divides all states among its members."""
        return bool(self.strategy.zero) and self.mesh.degree("copies") > 1

    @property
    def sums_copies_last(self) -> bool:
        """Whether these groups exchange the gradients of sharded parameters with one another only after backward."""
        return self.strategy.zero == 3 and self._has_copies and not self.runtime.exchange.overlap_gradients

    def copies_last(self, dense: float) -> list[Item]:
        """Sums the gradients of ``dense`` sharded parameters between groups of replicas, after backward."""
        stated = self.runtime.exchange.reduce_dtype
        sent = DType(stated) if stated else self.precision.activations
        return [self._item(*self._between_shards(dense * sent.nbytes * self.strategy.compression))]

    def _between_shards(self, nbytes: float) -> tuple[Collective, str, Group]:
        work = self.mesh.span("copies").collective("all_reduce", nbytes / self.mesh.shard)
        return work, "dp gradients between shards", Group.COPIES

    def _over(self, dense: float, experts: float, kind: CollectiveKind, size: float) -> list[tuple[Collective, Group]]:
        """One collective for ``dense`` parameters among all replicas, and one for ``experts`` among theirs."""
        group = Group.SHARD if self.strategy.zero and self.mesh.degree("copies") > 1 else Group.DATA
        found = []
        for parameters, over in ((dense, group), (experts, Group.EXPERT_DATA)):
            span = self.mesh.span(*over.axes)
            if parameters and span.num_ranks > 1:
                found.append((span.collective(kind, parameters * size), over))
        return found
