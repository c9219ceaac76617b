"""Finds layers that repeat in a list of nodes, by what the nodes do and how they are connected, not by their names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.graph.onnx.network import OnnxNetwork, OnnxNode

_MIN_COUNT: Final = 3
_UNNAMED: Final = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """From node ``start`` on, a group of ``period`` nodes is repeated ``count`` times.

    ``scopes`` are the paths of the repetitions, and ``inner`` the path of each node of a group below them. ``carried``
    are the values that each repetition takes from the one before it (the first: from before the run). ``digest`` tells
    what a repetition computes.
    """

    start: int
    period: int
    count: int
    scopes: tuple[str, ...]
    inner: tuple[str, ...]
    carried: tuple[tuple[str, ...], ...]
    digest: str

    @property
    def end(self) -> int:
        """The number of the first node behind the run."""
        return self.start + self.period * self.count


def find_layers(network: OnnxNetwork, scopes: Sequence[str]) -> list[LayerRun]:
    """The repeated layers of ``network`` in the order of its nodes; ``scopes`` are the paths of its nodes."""
    tokens = [_token(node, network) for node in network.nodes]
    numbers = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    search = _Search(network, scopes, np.array([numbers[t] for t in tokens], dtype=np.int64), tokens)
    search.within(0, len(tokens))
    return sorted(search.found, key=lambda run: run.start)


def _token(node: OnnxNode, network: OnnxNetwork) -> str:
    """Everything by which two nodes may differ, except their names and the values of their weights."""
    given = []
    for name in node.inputs:
        weight, constant = network.weights.get(name), network.constants.get(name)
        if weight is not None:
            given.append(f"{weight.shape}{weight.trainable}")
        elif constant is not None:
            given.append(f"{constant.dtype}{constant.shape}{hashlib.sha256(constant.tobytes()).hexdigest()[:16]}")
        else:
            given.append("_" if name else "")
    attributes = sorted((k, str(v)) for k, v in node.attributes.items())
    return f"{node.op} {given} {attributes} {len(node.outputs)} {node.owner}"


class _Search:
    """Looks for the run that covers most nodes, then before and behind it."""

    def __init__(self, network: OnnxNetwork, scopes: Sequence[str], numbers: np.ndarray, tokens: Sequence[str]) -> None:
        self.found: list[LayerRun] = []
        self._network, self._scopes, self._numbers, self._tokens = network, scopes, numbers, tokens
        self._made = {name: n for n, node in enumerate(network.nodes) for name in node.outputs if name}
        self._last_use: dict[str, int] = dict.fromkeys(network.outputs, len(tokens))
        for n, node in enumerate(network.nodes):
            for name in node.inputs:
                self._last_use[name] = max(n, self._last_use.get(name, n))

    def within(self, low: int, high: int) -> None:
        """Find runs among the nodes from ``low`` to before ``high``."""
        for _, start, period, count, slack in sorted(self._stretches(low, high), reverse=True):
            run = self._placed(start, period, count, slack)
            if run is not None:
                self.found.append(run)
                self.within(low, run.start)
                self.within(run.end, high)
                return

    def _stretches(self, low: int, high: int) -> list[tuple[int, int, int, int, int]]:
        """``(nodes covered, start, period, count, later starts)`` of every run of equal groups, one per period."""
        numbers = self._numbers[low:high]
        found = []
        for period in range(1, len(numbers) // _MIN_COUNT + 1):
            same = np.concatenate(([0], (numbers[:-period] == numbers[period:]).astype(np.int8), [0]))
            changes = np.flatnonzero(np.diff(same))
            for begin, end in zip(changes[::2], changes[1::2], strict=True):
                count = int(end - begin) // period + 1
                if count >= _MIN_COUNT:
                    slack = int(end - begin) % period
                    found.append((count * period, low + int(begin), period, count, slack))
        # Of runs that cover the same nodes, the one with the shortest period stands first when sorted downwards.
        return [
            (covered * 100_000 - period, start, period, count, slack) for covered, start, period, count, slack in found
        ]

    def _placed(self, start: int, period: int, count: int, slack: int) -> LayerRun | None:
        """The run that starts where a module of the file starts, or else where the fewest values cross."""
        starts = [(s, count) for s in range(start, start + slack + 1)]
        if count > _MIN_COUNT:
            starts += [(s, count - 1) for s in range(start + slack + 1, start + slack + period)]
        plain: list[tuple[int, int, int, LayerRun]] = []
        for begin, number in starts:
            carried = self._carried(begin, period, number)
            if carried is None:
                continue
            scopes, inner = self._paths(begin, period, number)
            run = LayerRun(
                start=begin,
                period=period,
                count=number,
                scopes=scopes,
                inner=inner,
                carried=carried,
                digest=hashlib.sha256("\n".join(self._tokens[begin : begin + period]).encode()).hexdigest(),
            )
            if scopes[0].rpartition(".")[2].isdigit() and not scopes[0].startswith(_UNNAMED):
                return run
            plain.append((-number, len(carried[0]), begin, run))
        return min(plain, key=lambda p: p[:3])[3] if plain else None

    def _carried(self, start: int, period: int, count: int) -> tuple[tuple[str, ...], ...] | None:
        """Returns what each repetition reads from the one before; ``None`` if their connections differ."""
        links = [self._links(start, period, r) for r in range(count)]
        if any(link is None or link != links[1] for link in links[1:]) or links[0] is None or links[1] is None:
            return None
        for one, other in zip(links[0], links[1], strict=True):
            if one != other and not (isinstance(one, str) and isinstance(other, tuple) and other[0] == 1):
                return None
        end = start + period * (count - 1)
        for n in range(start, end):
            limit = start + period * ((n - start) // period + 2)
            if any(self._last_use.get(name, -1) >= limit for name in self._network.nodes[n].outputs):
                return None
        entering = {
            other[1:]: one
            for one, other in zip(links[0], links[1], strict=True)
            if isinstance(one, str) and isinstance(other, tuple)
        }
        nodes = self._network.nodes
        later = (tuple(nodes[start + r * period + n].outputs[k] for n, k in entering) for r in range(count - 1))
        return (tuple(entering.values()), *later)

    def _links(self, start: int, period: int, repetition: int) -> list[str | tuple[int, int, int]] | None:
        """For each input of each node: (repetitions back, node, output) if it is made in the run, else its name."""
        first = start + repetition * period
        links: list[str | tuple[int, int, int]] = []
        for n in range(first, first + period):
            for name in self._network.nodes[n].inputs:
                if name in self._network.weights or name in self._network.constants:
                    continue
                maker = self._made.get(name, -1)
                back = repetition - (maker - start) // period
                if maker < start:
                    links.append(name)
                elif back > 1:
                    return None
                else:
                    links.append((back, (maker - start) % period, self._network.nodes[maker].outputs.index(name)))
        return links

    def _paths(self, start: int, period: int, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths of the repetitions and of the nodes in them: from the file if its modules are the repetitions."""
        nodes = self._network.nodes
        groups = [self._scopes[start + r * period : start + (r + 1) * period] for r in range(count)]
        roots = [common_root(group) for group in groups]
        inner = [tuple(scope[len(root) :].strip(".") for scope in g) for g, root in zip(groups, roots, strict=True)]
        parents = {root.rpartition(".")[0] for root in roots}
        if len(set(roots)) == count and len(parents) == 1 and all(i == inner[0] for i in inner) and "" not in roots:
            return tuple(roots), inner[0]
        name = f"{_UNNAMED}{len(self.found)}"
        places = tuple(f"{nodes[start + j].op.lower()}{j}" for j in range(period))
        return tuple(f"{name}.{r}" for r in range(count)), places


def common_root(scopes: Sequence[str]) -> str:
    """The longest path that all ``scopes`` are below.

    >>> common_root(["layers.0.norm", "layers.0", "layers.0.mlp.up"])
    'layers.0'
    """
    parts = [scope.split(".") for scope in scopes]
    root = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        root.append(column[0])
    return ".".join(root)


def node_scopes(runs: Sequence[LayerRun], scopes: Sequence[str]) -> list[str]:
    """The path of each node, with repetitions under their own paths."""
    result = list(scopes)
    for run in runs:
        for r, scope in enumerate(run.scopes):
            for j, inner in enumerate(run.inner):
                result[run.start + r * run.period + j] = f"{scope}.{inner}" if inner else scope
    return result
