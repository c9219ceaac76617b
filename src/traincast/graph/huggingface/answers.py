"""Runs parts of a ``transformers`` model as fused operators, and answers what its code asks of data.

Traced as they are, these models would run their norms, rotary positions, experts and scans as dozens of small
operators, since the fused kernels exist on GPUs only. :func:`fused` replaces them by the operators that the zoo uses.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def fused(module: torch.nn.Module) -> Iterator[set[str]]:
    """A context in which parts of a ``transformers`` model run as the operators that GPUs run them as.

    Yields the lines of code whose questions about data were answered by no, as they come.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributions import Distribution

    from traincast.graph.huggingface import kernels

    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Callable[..., Any]) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    classes = {type(child) for child in module.modules()}
    try:
        for home in {sys.modules[kind.__module__] for kind in classes if kind.__module__.startswith("transformers.")}:
            for name, function in kernels.FUNCTIONS.items():
                if name in vars(home) and kernels.fits(vars(home)[name], function):
                    replace(home, name, function)
        for kind in classes:
            forward = kernels.norm_of(kind)
            if forward is not None and _keeps_shape(next(m for m in module.modules() if type(m) is kind)):
                replace(kind, "forward", forward)
            other = kernels.experts_of(kind) or kernels.indexer_of(kind)
            if other is not None:
                replace(kind, "forward", other)
        asked: set[str] = set()
        undo.append((Distribution, "_validate_args", Distribution._validate_args))
        Distribution.set_default_validate_args(False)  # whether values are valid depends on data
        replace(FakeTensor, "tolist", _listed(FakeTensor.tolist))
        with _answers(asked):
            yield asked
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _listed(numbers: Callable[[Any], list[Any]]) -> Callable[[Any], Any]:
    """``tolist`` of tensors whose numbers a trace may not know: then the tensor itself."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    def listed(tensor: Any) -> Any:
        try:
            return numbers(tensor)
        except DataDependentOutputException:
            return tensor

    return listed


def _keeps_shape(norm: Any) -> bool:
    """Whether a module that is called a norm and has no weight returns its input normed, not a factor for it."""
    import torch

    if getattr(norm, "weight", None) is not None:
        return True
    try:
        return bool(norm(torch.empty(2, 3, 8, device="meta")).shape == (2, 3, 8))
    except Exception:  # a norm of a width of its own
        return True


def _answers(asked: set[str]) -> Any:
    """A context that answers questions about data, which a trace does not have; ``asked`` gets the lines that asked.

    Layers that training skips at random all run: the random number that LayerDrop draws for each layer is 1. An
    assertion holds. Anything else that is asked as yes or no (whether some token is padding, say) is answered by no.
    Where a mask chooses the elements that are set, as in SpecAugment, all are written, so that shapes do not depend on
    it. A mask that a tensor of equal numbers decides (all samples in one language) chooses all or nothing. A list of
    numbers that data decide (the rows of each expert) stays a tensor.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode

    class Answers(TorchFunctionMode):  # type: ignore[misc]
        """Returns 1 for a single random number between 0 and 1, so that no layer is skipped at random."""

        def __init__(self) -> None:
            super().__init__()
            self.equal = EqualNumbers()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.rand and args in (([],), ((),)):
                return 1.0
            if func in (torch.Tensor.item, torch.Tensor.__bool__) and isinstance(args[0], FakeTensor):
                frame = _caller()
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert "):
                    return args[0].dtype is torch.bool
                if args[0].dtype is torch.bool:
                    asked.add(place)
                    return False
            if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and self.equal.knows(args[1]):
                return self.equal.chosen(*args)
            if func is torch.Tensor.__setitem__ and _is_mask(args[1]) and args[1].ndim <= args[0].ndim:
                data, mask, value = args
                chosen = mask.reshape(*mask.shape, *[1] * (data.ndim - mask.ndim))
                return data.copy_(torch.where(chosen, torch.as_tensor(value, dtype=data.dtype), data))
            return self.equal.seen(func, args, func(*args, **(kwargs or {})))

    def _is_mask(index: Any) -> bool:
        return isinstance(index, FakeTensor) and index.dtype is torch.bool

    return Answers()


class EqualNumbers:
    """Tensors whose numbers are all the same, with that number: ones, multiples of them, and comparisons of these."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, float | bool]] = {}

    def knows(self, tensor: object) -> bool:
        """Whether all numbers of ``tensor`` are the same and known."""
        return id(tensor) in self._known

    def seen(self, func: Any, args: Any, result: Any) -> Any:
        """Returns ``result`` of ``func``, and notes its number if it is known."""
        import torch

        if func is torch.ones:
            self._known[id(result)] = (result, 1)
        elif len(args) == 2 and self.knows(args[0]) and isinstance(args[1], int | float):
            value = self._known[id(args[0])][1]
            if func in (torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__):
                self._known[id(result)] = (result, value * args[1])
            elif func in (torch.Tensor.eq, torch.Tensor.__eq__):
                self._known[id(result)] = (result, value == args[1])
        return result

    def chosen(self, data: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor | None:
        """``data[mask]``, or ``data[mask] = value`` if there is a value, of a mask that is known."""
        import torch

        every = bool(self._known[id(mask)][1])
        if value is not None:
            return data.copy_(value) if every else None
        rows = torch.arange(len(data) if every else 0, device=data.device)
        return data.index_select(0, rows)


def _caller() -> FrameType:
    """The frame of the model's code that called PyTorch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "traincast"):
        frame = frame.f_back
    return frame
