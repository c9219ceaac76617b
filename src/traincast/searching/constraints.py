"""Constraints on strategies as text: ``memory<=70GB,tp<=8,schedule=1f1b|zb-v``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final

from traincast.errors import RequestError, UnknownNameError
from traincast.searching.space import AXES, Axes, restricted
from traincast.units import parse_bytes

_ITEM: Final = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*$", re.ASCII)
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_SHORT: Final = {"sp": "sequence_parallel", "mbs": "micro_batch", "vp": "virtual_stages"}
_FLAGS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def apply_constraints(text: str, axes: Axes, most_memory: float) -> tuple[Axes, float]:
    """Return ``axes`` and ``most_memory`` (bytes) within the constraints in ``text``; refuse an axis left empty."""
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _ITEM.match(item)
        if not match:
            raise RequestError(f"constraint {item!r}: expected a limit such as tp<=8, zero=1|3 or memory<=70GB")
        key, sign, value = match.groups()
        name = _SHORT.get(key, key)
        if name == "memory":
            if sign not in ("<=", "<"):
                raise RequestError(f"constraint {item!r}: memory takes only an upper limit, such as memory<=70GB")
            most_memory = min(most_memory, parse_bytes(value, what="constraint memory"))
        elif name in AXES:
            axes = restricted(axes, name, _test(item, name, sign, value, axes))
        else:
            raise UnknownNameError("constraint", key, ["memory", *AXES, *_SHORT])
    return axes, most_memory


def _test(item: str, name: str, sign: str, value: str, axes: Axes) -> Callable[[Any], bool]:
    """Return a function that tests whether a value of an axis meets a constraint."""
    kind = type(getattr(axes, name)[0])
    chosen = [_parsed(item, kind, part.strip()) for part in value.split("|")]
    if kind is str:
        for name_of in chosen:
            if name_of not in getattr(axes, name):
                raise UnknownNameError(name, name_of, getattr(axes, name))
    if sign == "=":
        return lambda found: found in chosen
    if sign == "!=":
        return lambda found: found not in chosen
    if kind is not int or len(chosen) > 1:
        raise RequestError(f"constraint {item!r}: {sign} compares one number; use = or != here")
    compare = _OPERATORS[sign]
    return lambda found: compare(found, chosen[0])


def _parsed(item: str, kind: type, value: str) -> Any:
    if kind is bool:
        if value.lower() not in _FLAGS:
            raise RequestError(f"constraint {item!r}: expected true or false")
        return _FLAGS[value.lower()]
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise RequestError(f"constraint {item!r}: expected a whole number") from None
    return value
