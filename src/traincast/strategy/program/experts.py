"""Expert parallelism: which operators belong to the experts of a mixture, and the share of each that one rank runs.

A token is sent to the ranks that hold its experts (dispatch) and its results come back (combine). The ranks of a
stage are ``ep`` groups of experts × ``etp`` shares of each expert × replicas. With T tokens per tensor group and k
experts per token, a rank computes T·k·etp/tp rows of E/ep experts, and each product is cut ``etp`` ways. If the router
spreads tokens evenly, the work of a rank is the same for every ``ep`` and ``etp``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from traincast.errors import StrategyError
from traincast.graph import Block, DType, Operator, OperatorGraph, OpKind, Phase, Scalar, TensorSpec
from traincast.strategy.runtime import Runtime
from traincast.strategy.schedules import load_schedule
from traincast.strategy.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The experts of one layer: the operators between dispatch and combine, and the tokens sent there and back."""

    scope: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    tokens: TensorSpec
    experts: int
    inner: int
    copies: float

    @property
    def outer(self) -> int:
        """The width of a token."""
        return self.tokens.shape[-1]

    def moves_tokens(self, op: Operator, index: int) -> bool:
        """Whether an operator outside the experts reorders or weights the tokens that are sent to them and back."""
        inside = index in self.forward or index in self.backward
        return not inside and op.scope == self.scope and any(spec.shape == self.tokens.shape for spec in _tensors(op))

    def moving(self, graph: OperatorGraph, block: Block, phase: Phase) -> list[int]:
        """The operators of one pass that :meth:`moves_tokens` finds."""
        pass_ = block.forward if phase is Phase.FORWARD else block.backward
        return [i for i in pass_ if self.moves_tokens(graph.operators[i], i)]

    def owns(self, parameter: TensorSpec, scope: str) -> bool:
        """Whether a parameter belongs to the experts."""
        return scope == self.scope and len(parameter.shape) > 1 and parameter.shape[0] == self.experts


def find_regions(graph: OperatorGraph, block: Block) -> list[Region]:
    """The expert regions of ``block``, each from the first grouped product of a layer to the last."""
    places: dict[str, list[int]] = {}
    for n, i in enumerate(block.forward):
        op = graph.operators[i]
        if op.kind is OpKind.GROUPED_GEMM:
            places.setdefault(op.scope, []).append(n)
    regions = []
    for scope, at in places.items():
        forward = block.forward[at[0] : at[-1] + 1]
        after = [n for n, i in enumerate(block.backward) if graph.forward_of[i] in forward]
        first, last = (graph.operators[forward[n]] for n in (0, -1))
        regions.append(
            Region(
                scope=scope,
                forward=forward,
                backward=block.backward[after[0] : after[-1] + 1] if after else (),
                tokens=first.inputs[0],
                experts=first.inputs[1].shape[0],
                inner=last.inputs[0].shape[-1],
                copies=_copies(graph, block, first),
            )
        )
    return regions


def _copies(graph: OperatorGraph, block: Block, first: Operator) -> float:
    """The number of experts of a token: routed rows over the rows of the tensor that they are gathered from."""
    routed = first.inputs[0].shape
    for i in block.forward:
        op = graph.operators[i]
        if (
            op.scope == first.scope
            and op.outputs
            and op.outputs[0].shape == routed
            and op.inputs[0].shape[1:] == routed[1:]
        ):
            return max(1.0, routed[0] / op.inputs[0].shape[0])
    return 1.0


def _tensors(op: Operator) -> tuple[TensorSpec, ...]:
    return (*op.inputs, *op.outputs)


class BatchOverlap(NamedTuple):
    """The ``share`` of another microbatch's compute that the traffic of one microbatch's experts overlaps with.

    It is that of a pass like its own or, if passes are ``paired``, that of a forward and a backward that run as one.
    """

    share: float
    paired: bool = False


def overlap_of_batches(strategy: Strategy, runtime: Runtime, *, near: bool) -> BatchOverlap | None:
    """How the traffic of experts overlaps with the compute of other microbatches; None if it does not.

    Schedules that pair passes are made for it. With others, it is a habit of the runtime: pipelines need several chunks
    of layers on each rank for it, and only some runtimes do so without a pipeline, or if the ranks that share experts
    are ``near`` one another: in one domain of fast links.
    """
    if strategy.ep == 1 or strategy.num_microbatches == 1:
        return None
    pairs = load_schedule(strategy.schedule).pairs if strategy.pp > 1 else None
    share = pairs(strategy.pp, strategy.num_microbatches) if pairs is not None else 0.0
    if share > 0.0:
        return BatchOverlap(share, paired=True)
    several = strategy.virtual_stages > 1 if strategy.pp > 1 else runtime.experts.overlap_batches_near
    does = several and (runtime.experts.overlap_batches_near or not near) and runtime.experts.overlap_batches > 0.0
    return BatchOverlap(runtime.experts.overlap_batches) if does else None


def kernel_marks(runtime: Runtime, gradients: DType | None) -> dict[str, Scalar]:
    """The attributes of a grouped product that tell a cost model which kernels run it; none if the runtime names none.

    ``gradients`` is the dtype in which gradients of weights are summed, if the product makes any.
    """
    if not runtime.experts.grouped:
        return {}
    adds = {"adds_to": gradients.value} if gradients and "gradients" in runtime.kernels.fusions else {}
    return {"kernel": runtime.experts.grouped, **adds}


def distinct(places: int, draws: float) -> float:
    """The expected number of different places among ``draws`` even draws of ``places`` places."""
    return places * (1.0 - float((1.0 - 1.0 / places) ** draws))


def check_experts(graph: OperatorGraph, *, ep: int, etp: int) -> None:
    """Raise :class:`StrategyError` for degrees that do not divide the model's experts or their width."""
    regions = [region for block in graph.blocks for region in find_regions(graph, block)]
    if not regions and ep > 1:
        raise StrategyError(f"ep={ep}, but {graph.name} has no experts to divide; set ep=1")
    for region in regions:
        if region.experts % ep:
            raise StrategyError(
                f"ep={ep} does not divide the {region.experts} experts of {graph.name}; choose a divisor of "
                f"{region.experts}"
            )
        if region.inner % etp:
            raise StrategyError(f"etp={etp} does not divide the experts' width of {region.inner}; choose a divisor")
        if etp > 1 and region.inner == region.outer:
            raise StrategyError(
                f"etp={etp}: the experts of {graph.name} are as wide inside as outside ({region.inner}), so the "
                "side to shard is ambiguous; set etp=1"
            )


def cut_expert(op: Operator, region: Region, *, ep: int, etp: int, rows: float) -> Operator:
    """One rank's share of an operator between dispatch and combine: ``rows`` times its rows, its share of experts."""

    def cut(spec: TensorSpec) -> TensorSpec:
        if spec.shape[:1] == (region.experts,):  # weights, or where each expert's rows end
            spec = spec.scaled(0, 1.0 / ep)
        elif spec.batch_dim is not None:
            spec = spec.scaled(spec.batch_dim, rows)
        else:
            return spec
        for dim in range(1, len(spec.shape)):
            if spec.shape[dim] != region.outer:
                spec = spec.scaled(dim, 1.0 / etp)
        return spec

    return replace(
        op,
        inputs=tuple(map(cut, op.inputs)),
        outputs=tuple(map(cut, op.outputs)),
        saved=tuple(map(cut, op.saved)),
        parameters=tuple(map(cut, op.parameters)),
    )
