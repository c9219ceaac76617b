"""Progress of tracing, and the module in which it failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of modules traced so far, and the total; forward and backward both count."""


class Steps:
    """Counts modules as they are traced and tells ``progress``, if there is one."""

    def __init__(self, modules: int, progress: Progress | None) -> None:
        self._modules, self._progress = modules, progress
        self._seen: set[str] = set()
        self._done = 0

    def forward(self, scope: str) -> None:
        """The module called ``scope`` runs."""
        if self._progress is not None and scope not in self._seen:
            self._seen.add(scope)
            self._tell(len(self._seen))

    def backward(self, left: float) -> None:
        """``left`` is the share of forward operators that are not yet differentiated."""
        if self._progress is not None:
            self._tell(2 * self._modules - int(self._modules * left))

    def _tell(self, done: int) -> None:
        if self._progress is not None and self._done < done <= 2 * self._modules:
            self._done = done
            self._progress(done, 2 * self._modules)


def module_of(error: BaseException) -> str:
    """`` in module PATH (CLASS)``, the innermost one that ran when ``error`` was raised; empty if none did."""
    import torch

    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    running = [m for frame in frames if isinstance(m := frame.f_locals.get("self"), torch.nn.Module)]
    if not running:
        return ""
    root, module = running[0], running[-1]
    path = next((path for path, child in root.named_modules() if child is module), "")
    return f" in module {path!r} ({type(module).__name__})" if path else f" in {type(module).__name__} itself"
