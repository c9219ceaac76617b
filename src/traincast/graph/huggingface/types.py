"""Interprets ``types.toml``: how the fields of a configuration feed the dimensions of a family of the zoo."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from traincast.graph.huggingface.codes import CODES, LAYER_TYPES, mixers
from traincast.graph.huggingface.fields import ACTIVATIONS, DEFAULT_SEQ, Fields, Parameters, Reading
from traincast.graph.vocabulary import Scalar

_ABOUT: Final = frozenset({"like", "family", "defaults", "omit", "if"})
_MUST: Final = "must "

Table = Mapping[str, Any]


@cache
def tables() -> dict[str, Table]:
    """The table of every ``model_type``, and those that others are like."""
    return tomllib.loads(resources.files(__package__).joinpath("types.toml").read_text(encoding="utf-8"))


def type_names() -> list[str]:
    """The values of ``model_type`` that have a table."""
    return [name for name in tables() if not name.startswith("_")]


def read_type(name: str, fields: Fields) -> Reading:
    """Returns the family and its dimensions from the fields of a configuration, by the table ``name``."""
    table = tables()[name]
    if "defaults" in table:
        fields = fields.with_defaults(**table["defaults"])
    family, found = read_type(table["like"], fields) if "like" in table else ("", {})
    found = dict(found)
    _read_lines(table, fields, found)
    for condition, lines in table.get("if", {}).items():
        field, _, above = condition.partition(" > ")
        if field in fields and not (above and fields.size(field, low=0) <= int(above)):
            _read_lines(lines, fields, found)
    for dimension in table.get("omit", ()):
        found.pop(dimension, None)
    return table.get("family", family), found


def _read_lines(table: Table, fields: Fields, found: Parameters) -> None:
    for name, line in table.items():
        if name.startswith(_MUST):
            value = line["is"] if "is" in line else _multiple(line["of"], found)
            fields.require(name.removeprefix(_MUST), value, why=line["why"].format(value))
        elif name not in _ABOUT:
            value = fields.size(line) if isinstance(line, str) else _read_line(line, fields, found)
            if value or not (isinstance(line, dict) and line.get("nonzero")):
                found |= dict.fromkeys(name.split(), value)


def _read_line(line: Table, fields: Fields, found: Parameters) -> Scalar:
    """The value of one dimension; the key that says how it is read has the names of its fields."""
    how = next(key for key in line if key in _READERS)
    return _READERS[how](line[how], line, fields, found)


def _size(names: str, line: Table, fields: Fields, found: Parameters) -> int:
    default = line.get("default")
    value = fields.size(
        *names.split(),
        default=_multiple(default, found) if isinstance(default, str) else default,
        low=line.get("low", 1),
        automatic=line.get("automatic", ""),
    )
    return value * (int(found[line["times"]]) if "times" in line else 1) + int(line.get("plus", 0))


def _seq(names: str, line: Table, fields: Fields, found: Parameters) -> int:
    return min(DEFAULT_SEQ, _size(names, {"default": DEFAULT_SEQ, **line}, fields, found))


def _flag(names: str, line: Table, fields: Fields, found: Parameters) -> Scalar:
    """Whether one of the fields is true."""
    value = any(fields.flag(name, default=line["default"]) for name in names.split())
    chosen: Scalar = line["then" if value else "else"] if "then" in line else value
    return chosen


def _choice(names: str, line: Table, fields: Fields, found: Parameters) -> str:
    return fields.choice(*names.split(), default=line["default"], known=ACTIVATIONS[line["known"]])


def _layers(known: str, line: Table, fields: Fields, found: Parameters) -> str:
    default = line["default"]
    if "period" in line:
        period = fields.size(*line["period"].split(), default=line["every"])
        default = default[0] * (period - 1) + default[1]
    return mixers(fields, LAYER_TYPES[known], default=default)


def _multiple(text: str, found: Parameters) -> int:
    """``4 * hidden`` or ``hidden``: a multiple of a dimension that is read."""
    factor, _, name = text.rpartition(" * ")
    return int(factor or 1) * int(found[name])


_READERS: Final[Mapping[str, Callable[[Any, Table, Fields, Parameters], Scalar]]] = {
    "size": _size,
    "seq": _seq,
    "flag": _flag,
    "fraction": lambda name, line, fields, found: fields.fraction(name, default=line["default"]),
    "rope": lambda default, line, fields, found: fields.rope_fraction(default=default),
    "choice": _choice,
    "count": lambda name, line, fields, found: fields.length(name, default=line["default"]),
    "layers": _layers,
    "given": lambda name, line, fields, found: line["then" if name in fields else "else"],
    "is": lambda value, line, fields, found: value,
    "of": lambda text, line, fields, found: _multiple(text, found),
    "code": lambda name, line, fields, found: CODES[name](fields, found),
}
