"""PyTorch without its compiler, whose import takes a second and which tracing a model of the zoo does not need.

PyTorch imports ``torch._dynamo`` the first time a dispatch mode runs, only to mark functions as not to be
compiled. Inside :func:`without_compiler` a stand-in takes the marks; outside nothing of it is left, and the
real package can be imported as usual.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_NAME: Final = "torch._dynamo"
_MARK: Final = "__dynamo_disable"


@contextmanager
def without_compiler() -> Iterator[None]:
    """A context for PyTorch code that compiles nothing. It does nothing if the compiler is already loaded."""
    import torch

    spec = importlib.util.find_spec(_NAME)
    if _NAME in sys.modules or spec is None or spec.submodule_search_locations is None:
        yield
        return
    marked: list[Callable[..., Any]] = []

    def disable(function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True) -> Callable[..., Any]:
        marked.append(function)
        return function

    stand_in = ModuleType(_NAME)
    stand_in.__path__ = list(spec.submodule_search_locations)
    stand_in.disable = disable  # type: ignore[attr-defined]
    before = set(sys.modules)
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in
    try:
        yield
    finally:
        for name in [n for n in set(sys.modules) - before if n == _NAME or n.startswith(_NAME + ".")]:
            del sys.modules[name]
        del torch._dynamo
        for function in marked:
            vars(function).pop(_MARK, None)
