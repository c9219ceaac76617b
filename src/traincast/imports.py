"""Imports a user's Python objects by ``package.module:name``, and finds the line where their code failed."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

from traincast.errors import RequestError, UnknownNameError

Made = TypeVar("Made")

_LONGEST: Final = 200
_LIBRARIES: Final = ("traincast", "torch", "numpy")


def refuse_code(spec: str, what: str) -> None:
    """Raise ``RequestError``: a name in a data file would import and run Python code."""
    raise RequestError(
        f"{what} {spec[:80]!r} is in a data file and would run Python code: add --allow-code if you trust the file"
    )


def import_callable(spec: str, what: str, *, role: str) -> Callable[..., Any]:
    """Returns the callable at ``spec``; modules in the current folder are found too.

    Error messages begin with ``what`` the callable is for, and call the name behind the colon a ``role``.
    """
    module, _, name = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RequestError(
            f"{what} {spec!r}: {reason_of(error)}; expected package.module:{role} that can be imported"
        ) from error
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise RequestError(
            f"{what} {spec!r}: importing {module} failed{place_of(error)}: {described(error)}"
        ) from error
    if not callable(found):
        raise RequestError(f"{what} {spec!r}: {name} is not callable")
    result: Callable[..., Any] = found
    return result


def make_by_name(kind: str, name: str, known: Mapping[str, Callable[[], Made]], base: type[Made]) -> Made:
    """Make an object of the ``known`` class of that name, or of the user's ``package.module:Class`` below ``base``."""
    if name in known:
        return known[name]()
    if ":" not in name:
        raise UnknownNameError(kind, name, known, hint="or give package.module:Class")
    made = import_callable(name, kind, role="Class")()
    if not isinstance(made, base):
        home = ".".join(base.__module__.split(".")[:2])  # the package that offers it
        raise RequestError(f"{kind} {name!r} makes a {type(made).__name__}: subclass {home}.{base.__name__}")
    return made


def described(error: BaseException) -> str:
    """An exception in one short line: its type and what it says."""
    name, reason = type(error).__name__, reason_of(error)
    return f"{name}: {reason}" if reason else name


def reason_of(error: BaseException) -> str:
    """What an exception says, in one short line."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def place_of(error: BaseException) -> str:
    """`` at FILE:LINE``, the innermost line of a user's code that ``error`` came from; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {_short(error.filename)}:{error.lineno}"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = next((frame for frame in frames if not _is_library(frame.filename)), None)
    return f" at {_short(own.filename)}:{own.lineno}" if own else ""


def definition_of(function: Callable[..., Any]) -> str:
    """``FILE:LINE`` where ``function`` is defined; empty for one that is not written in Python."""
    try:
        _, line = inspect.getsourcelines(function)
        return f"{_short(inspect.getsourcefile(function) or '')}:{line}"
    except (OSError, TypeError):
        return ""


def _short(path: str) -> str:
    """A path as seen from the current folder, where it lies in it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _is_library(path: str) -> bool:
    """Whether a file is of Python, of Traincast or of a library that it calls, and not a user's."""
    if path.startswith("<"):
        return True
    parts = Path(path)
    if "site-packages" not in parts.parts and parts.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    origins = (spec.origin for name in _LIBRARIES if (spec := find_spec(name)) is not None)
    return any(parts.is_relative_to(Path(origin).parent) for origin in origins if origin)
