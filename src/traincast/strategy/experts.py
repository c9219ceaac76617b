"""Expert parallelism: which operators belong to the experts of a mixture, and the share of each that one rank runs.

A token is sent to the ranks that hold its experts (dispatch) and its results come back (combine). The ranks of a
stage are ``ep`` groups of experts × ``etp`` shares of each expert × replicas. With T tokens per tensor group and k
experts per token, a rank computes T·k·etp/tp rows of E/ep experts, and each product is cut ``etp`` ways. If the router
spreads tokens evenly, the work of a rank is the same for every ``ep`` and ``etp``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traincast.errors import StrategyError
from traincast.graph import Block, Operator, OperatorGraph, OpKind, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The experts of one layer: the operators between dispatch and combine, and the tokens sent there and back."""

    scope: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    tokens: TensorSpec
    experts: int
    inner: int

    @property
    def outer(self) -> int:
        """The width of a token."""
        return self.tokens.shape[-1]

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
            )
        )
    return regions


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
