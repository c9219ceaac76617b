"""Finds repeated blocks of a module before it is traced, so that two or three are traced instead of ninety-six."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    import torch

_MIN_COUNT: Final = 3
_MAX_PERIOD: Final = 8
_POSITIONAL: Final = frozenset({"layer_idx", "layer_id", "layer_number", "layer_index", "idx", "index", "training"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A run in a container: from ``start`` on, a group of ``period`` children is repeated ``count`` times.

    Two repetitions stay in the module and are traced, or three; ``scopes`` are the paths of their children, one
    repetition after the other. A layer among layers of other kinds has a ``count`` of 1 and no second repetition.
    """

    container: str
    start: int
    period: int
    count: int
    scopes: tuple[tuple[str, ...], ...]


def find_runs(signatures: Sequence[T]) -> list[tuple[int, int, int]]:
    """``(start, period, count)`` of each run of equal consecutive groups, the longest first found.

    >>> find_runs("abababc")
    [(0, 2, 3)]
    >>> find_runs("abbbbb")
    [(1, 1, 5)]
    """
    runs = []
    position = 0
    while position < len(signatures):
        best = (0, 0)
        for period in range(1, _MAX_PERIOD + 1):
            group = signatures[position : position + period]
            count = 1
            while (
                signatures[position + count * period : position + (count + 1) * period] == group
                and len(group) == period
            ):
                count += 1
            if count >= _MIN_COUNT and count * period > best[0] * best[1]:
                best = (period, count)
        if best[1]:
            runs.append((position, *best))
            position += best[0] * best[1]
        else:
            position += 1
    return runs


class _Kept(NamedTuple):
    """Paths of containers whose children all stay, and of those of which three repetitions stay."""

    whole: frozenset[str]
    thrice: frozenset[str]


@contextmanager
def folded(
    module: torch.nn.Module, whole_containers: Collection[str] = (), thrice: Collection[str] = ()
) -> Iterator[list[Repeat]]:
    """A context in which every run of structurally equal children of ``module`` is cut to two repetitions.

    Children of the modules at the paths ``whole_containers`` all stay, and three repetitions of those at ``thrice``.
    """
    repeats: list[Repeat] = []
    whole: list[tuple[torch.nn.Module, dict[str, torch.nn.Module | None]]] = []
    _fold(module, "", repeats, whole, _Kept(frozenset(whole_containers), frozenset(thrice)))
    try:
        yield repeats
    finally:
        for parent, children in whole:
            parent._modules = children


def _fold(
    parent: torch.nn.Module,
    path: str,
    repeats: list[Repeat],
    whole: list[tuple[torch.nn.Module, dict[str, torch.nn.Module | None]]],
    kept: _Kept,
) -> None:
    """Cut the runs below ``parent``; add each run to ``repeats``, and what to restore to ``whole``."""
    import torch

    children = list(parent.named_children())
    cut: set[str] = set()
    if isinstance(parent, torch.nn.ModuleList | torch.nn.Sequential) and path not in kept.whole:
        for start, period, count in find_runs([_signature(child) for _, child in children]):
            run = children[start : start + period * count]
            if len({id(child) for _, child in run}) < period * count:
                continue
            names = [name for name, _ in run]
            traced = 3 if path in kept.thrice else 2
            paths = [f"{path}.{name}" if path else name for name in names[: traced * period]]
            repeats.append(
                Repeat(
                    container=path,
                    start=start,
                    period=period,
                    count=count,
                    scopes=tuple(tuple(paths[n : n + period]) for n in range(0, traced * period, period)),
                )
            )
            cut.update(names)
            if not any(parent is seen for seen, _ in whole):
                whole.append((parent, parent._modules))
                parent._modules = dict(parent._modules)
            for name in names[traced * period :]:
                del parent._modules[name]
        repeats.extend(_alone(children, path, cut))
    for name, child in children:
        if name not in cut:
            _fold(child, f"{path}.{name}" if path else name, repeats, whole, kept)


def _alone(children: list[tuple[str, torch.nn.Module]], path: str, cut: set[str]) -> Iterator[Repeat]:
    """The children that say that they are layers and that no run holds."""
    for number, (name, child) in enumerate(children):
        if name not in cut and getattr(child, "is_layer", False):
            cut.add(name)
            scopes: tuple[tuple[str, ...], ...] = ((f"{path}.{name}" if path else name,), ())
            yield Repeat(container=path, start=number, period=1, count=1, scopes=scopes)


def _signature(module: torch.nn.Module) -> object:
    """Everything that could make two modules trace differently: classes, shapes, frozen parameters, plain settings."""
    settings = tuple(
        sorted(
            (name, value)
            for name, value in vars(module).items()
            if isinstance(value, int | float | str | bool | None)
            and not name.startswith("_")
            and name not in _POSITIONAL
        )
    )
    own = tuple((n, tuple(p.shape), p.dtype, p.requires_grad) for n, p in module.named_parameters(recurse=False))
    buffers = tuple((n, tuple(b.shape), b.dtype) for n, b in module.named_buffers(recurse=False))
    children = tuple((n, _signature(c)) for n, c in module.named_children())
    return (type(module).__qualname__, module.extra_repr(), settings, own, buffers, children)
