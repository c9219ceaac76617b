"""A user's own Python objects, named ``package.module:name``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traincast.errors import RequestError


def refuse_code(spec: str, what: str) -> None:
    """Refuse a name in a data file that would import and run Python code."""
    raise RequestError(
        f"{what} {spec[:80]!r} stands in a data file and would run Python code: give --allow-code if you trust the file"
    )


def import_callable(spec: str, what: str, *, role: str) -> Callable[..., Any]:
    """The callable at ``spec``; modules in the current folder are found too.

    Messages say ``what`` it is for, and the ``role`` of the name behind the colon.
    """
    module, _, name = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RequestError(f"{what} {spec!r}: {error}; expected package.module:{role} that can be imported") from error
    if not callable(found):
        raise RequestError(f"{what} {spec!r}: {name} is not callable")
    result: Callable[..., Any] = found
    return result
