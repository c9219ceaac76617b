"""Compile a loop with Numba when it is first used.

The loop is a plain Python function. Small inputs run it as it is, because loading a compiler would take longer than the
loop; large inputs run it as machine code::

    def _total(values: Any) -> float: ...

    _fast = Compiled(_total, pays_from=60_000)

    total = _fast(values) if _fast.pays(len(values)) else _total(values.tolist())

Importing this module does not import Numba. The machine code is kept on disk between runs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from types import FunctionType
from typing import Any, Final

_OPTIONS: Final = {"boundscheck": False}
_LOADED: Final = 20
"""Inputs this many times smaller run compiled if Numba is loaded already: reading the code of one loop takes 4 ms."""


class Compiled:
    """The machine code of ``function``, made when it is first called.

    ``function`` may call other Python functions of its module or of those it imports from: they are compiled with it.
    It takes positional arguments only. ``pays_from`` is the size from which compiling saves time; see :meth:`pays`.
    """

    __slots__ = ("_code", "_function", "_wanted", "pays_from")

    def __init__(self, function: Callable[..., Any], *, pays_from: int = 0) -> None:
        assert isinstance(function, FunctionType), "only a function can be compiled"
        self._function = function
        self._wanted = False
        self._code: Callable[..., Any] = self._first
        self.pays_from = pays_from

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code; the first call imports Numba, and compiles unless the code is on disk."""
        try:
            return self._code(*arguments)
        except (OSError, EOFError, UnpicklingError):  # the copy on disk is damaged or cannot be written: do without
            self._code = self._make(cached=False)
            return self._code(*arguments)

    def pays(self, size: int) -> bool:
        """Whether an input of ``size`` should run compiled: it is large, or the machine code is there anyway.

        Loading Numba takes half a second, each loop after that little: another one may have paid for it.
        """
        least = self.pays_from // _LOADED if "numba" in sys.modules else self.pays_from
        return self._wanted or size >= least

    def prefer(self) -> None:
        """Let inputs of any size run compiled from now on: the caller has very many of them."""
        self._wanted = True

    def _first(self, *arguments: Any) -> Any:
        self._wanted = True
        try:
            self._code = self._make(cached=True)
        except RuntimeError:  # no folder for the code can be written to
            self._code = self._make(cached=False)
        return self._code(*arguments)

    def _make(self, *, cached: bool) -> Callable[..., Any]:
        import numba

        function = self._function
        parts = _parts(function)
        for part in parts:
            _register(part)
        made: Callable[..., Any] = numba.njit(cache=cached, **_OPTIONS)(_stamped(function, parts))
        return made


def _parts(function: FunctionType) -> list[FunctionType]:
    """The Python functions that ``function`` calls by a global name, and those that these call in turn."""
    found: list[FunctionType] = []
    waiting = [function]
    while waiting:
        at = waiting.pop()
        named = (at.__globals__.get(name) for name in at.__code__.co_names)
        new = [part for part in named if isinstance(part, FunctionType) and part not in (function, *found)]
        found += new
        waiting += new
    return found


@cache
def _register(part: FunctionType) -> None:
    """Let machine code call ``part``, which stays a Python function for everyone else."""
    from numba.extending import register_jitable

    register_jitable(part)


def _stamped(function: FunctionType, parts: Iterable[FunctionType]) -> FunctionType:
    """A copy of ``function`` under a name that changes with the source of its parts in other files.

    Numba compiles anew when the file of the function itself has changed, and does not look at the others.
    """
    files = sorted({part.__code__.co_filename for part in parts} - {function.__code__.co_filename})
    if not files:
        return function
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__ = function.__module__
    copy.__qualname__ = f"{function.__qualname__}_{digest.hexdigest()[:12]}"
    return copy
