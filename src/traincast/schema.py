"""Checks what a TOML or JSON file says against a type, and converts it.

A value is declared once, as a frozen dataclass whose fields carry their ranges::

    Bandwidth: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e15, description="bytes/s")]

msgspec converts and refuses; this module turns what it refuses into one line with the place, the value and what was
expected. Booleans are not numbers, NaN and infinity are in no range, and keys that are not declared are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import Meta

from traincast.errors import FileFormatError, nearest

T = TypeVar("T")
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"\S")]
Words: TypeAlias = tuple[Text, ...]

MAX_FILE_BYTES: Final = 1_000_000
_PLACE: Final = re.compile(r" - at `\$(.*)`$")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\[\.\.\.\]")
_WORDS: Final = {
    str: ("a text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
}
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")


def convert(value: object, kind: type[T], where: str, *, remedy: str = "") -> T:
    """Returns ``value`` as a ``kind``. Keys that a dataclass does not declare are left out.

    Raises ``FileFormatError`` if ``value`` does not match ``kind``. The message begins with ``where``, the file and
    table that ``value`` comes from; ``remedy`` says what to do about a missing key.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FileFormatError(_explain(str(error), value, kind, where, remedy)) from None


def read_table(value: object, kind: type, where: str) -> dict[str, Any]:
    """Returns the keys that the table ``value`` has, each converted as ``kind`` declares it; ``kind`` is a `table_of`.

    Raises ``FileFormatError`` for a wrong value or for a key that ``kind`` does not have.
    """
    read: dict[str, Any] = convert(value, kind, where)
    _refuse_unknown(value, read, kind, where)
    return read


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Returns what the TOML file at ``path`` says; ``what`` names its kind in errors, such as "cluster file"."""
    import tomllib  # the help of a verb reads no file

    shown = _shown(str(path), most=200)
    try:
        if not path.is_file():
            found = "is not a regular file" if path.exists() else "does not exist"
            raise FileFormatError(f"{what} {shown} {found}: give the path of a TOML file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FileFormatError(f"{what} {shown} is larger than {MAX_FILE_BYTES} bytes: give the path of a {what}")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"cannot read {what} {shown}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileFormatError(f"{what} {shown} is not valid TOML: {reason}") from error


@cache
def table_of(kind: type, *, without: tuple[str, ...] = (), **more: Any) -> Any:
    """Returns the type of a table that may set any fields of the dataclass ``kind``, but those ``without``.

    ``more`` are further keys and their types. Tables within the table may set any of their fields as well.
    """
    hints = get_type_hints(kind, include_extras=True)
    keys = {name: _partial(hint) for name, hint in hints.items() if name not in without}
    return TypedDict(f"{kind.__name__}Table", {**keys, **more}, total=False)  # type: ignore[operator]


@cache
def record_of(kind: type) -> Any:
    """Returns the type of an object that has the fields of the dataclass ``kind``, with numbers of any size.

    Fields that have a default may be missing.
    """
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    hints = {name: hint if name in required else NotRequired[hint] for name, hint in get_type_hints(kind).items()}
    return TypedDict(f"{kind.__name__}Record", hints)  # type: ignore[operator]


def keys_of(table: Any) -> tuple[str, ...]:
    """Returns the keys that a type of tables declares."""
    return tuple(table.__annotations__)


def _partial(hint: Any) -> Any:
    """The type of a field of a table: a dataclass becomes a table, with or without ``| None``; lists stay."""
    if get_origin(hint) is tuple:
        return hint
    tables: list[Any] = [option for option in (hint, *get_args(hint)) if is_dataclass(option)]
    return table_of(tables[0]) if tables else hint


def _refuse_unknown(given: Any, read: Mapping[str, Any], kind: Any, where: str) -> None:
    for key, value in given.items():
        if key not in read:
            known = keys_of(kind)
            raise FileFormatError(
                f"{where.removesuffix(':')} has unknown key {_shown(key)}: {nearest(str(key), known)}"
            )
        if isinstance(read[key], dict) and is_typeddict(kind.__annotations__[key]):
            _refuse_unknown(value, read[key], kind.__annotations__[key], _at(where, key))


def _explain(problem: str, value: Any, kind: Any, where: str, remedy: str) -> str:
    """One line for what msgspec refused: the place, the value there, what was expected."""
    found = _PLACE.search(problem)
    for step in _STEP.finditer(found.group(1) if found else ""):
        name, number = step.groups()
        key, kind = _inner(value, _required(kind), name, number)
        value = value[key]
        where = f"{where}[{key}]" if number else _at(where, key)
    missing = _MISSING.match(problem)
    if missing:
        return f"{_at(where, missing.group(1))} is missing" + (f": {remedy}" if remedy else "")
    return f"{where} is {_shown(value)}: expected {_expected(_required(kind))}"


def _at(where: str, key: object) -> str:
    """The place of ``key`` in a table; ``my.toml:`` stands for the table at the top of a file."""
    return f"{where}{' ' if where.endswith(':') else '.' if where else ''}{key}"


def _required(hint: Any) -> Any:
    """A type without ``NotRequired`` around it and without ``| None``."""
    hint = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
    options = get_args(hint)
    return next(option for option in options if option is not NoneType) if NoneType in options else hint


def _inner(value: Any, kind: Any, name: str | None, number: str | None) -> tuple[Any, Any]:
    """The key and the type of what stands at one step of a place; msgspec does not name the keys of mappings."""
    if name:
        return name, get_type_hints(kind, include_extras=True)[name]
    options = get_args(kind)
    if number:
        return int(number), options[0] if options[-1] is ... or len(options) == 1 else options[int(number)]
    for key, item in value.items():
        try:
            msgspec.convert(item, options[1])
        except msgspec.ValidationError:
            return key, options[1]
    raise AssertionError("msgspec refused none of the items")


def _expected(hint: Any, *, several: bool = False) -> str:
    """What a type expects, in words; in the plural for ``several``."""
    if isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint)):
        keys = ", ".join(get_type_hints(hint))
        return f"tables with {keys}" if several else f"a table with {keys}"
    limits = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Meta)), Meta())
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    origin, items = get_origin(plain) or plain, get_args(plain)
    if origin is Literal:
        return f"{'words of' if several else 'one of'} {', '.join(str(choice) or repr('') for choice in items)}"
    if isinstance(origin, type) and issubclass(origin, Enum):
        return f"{'words of' if several else 'one of'} {', '.join(str(member.value) for member in origin)}"
    if origin in (UnionType, Union):
        return " or ".join(_expected(item, several=several) for item in items)
    if origin in (tuple, list, Sequence):
        same = items[-1] is ... or len(set(items)) == 1
        count = "" if items[-1] is ... or origin is not tuple else f"{len(items)} "
        inner = _expected(items[0], several=True) if same else "items"
        return f"{'lists' if several else 'a list'} of {count}{inner}"
    if origin in (dict, Mapping):
        inner = f" of {_expected(items[1], several=True)}" if items and items[1] is not Any else ""
        return f"{'tables' if several else 'a table'}{inner}"
    one, many = _WORDS[origin]
    return f"{many if several else one}{_limits_of(limits)}"


def _limits_of(limits: Meta) -> str:
    if limits.max_length is not None:
        return f" of {limits.min_length or 0} to {limits.max_length} characters"
    span = f" from {limits.ge:.15g} to {limits.le:.15g}" if limits.ge is not None and limits.le is not None else ""
    return span + (f" ({limits.description})" if limits.description else "")


def _shown(value: object, *, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "…"
