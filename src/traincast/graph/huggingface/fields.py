"""Fields of a Hugging Face configuration, read with their types and refused in one line where they are wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Final, TypeAlias

from traincast.errors import RequestError
from traincast.graph.vocabulary import Scalar

DEFAULT_SEQ: Final = 4096
"""The sequence length of a configuration that accepts more: the maximum is not what a model is trained with."""
_MAX_SIZE: Final = 2**27
_MAX_SHOWN: Final = 60
_MAX_LAYERS: Final = 2000

Parameters: TypeAlias = dict[str, Scalar]
Reading: TypeAlias = tuple[str, Parameters]

_PLAIN: Final = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
ACTIVATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "gated": {
        "silu": "swiglu",
        "swish": "swiglu",
        "gelu": "geglu",
        "gelu_new": "geglu",
        "gelu_pytorch_tanh": "geglu",
    },
    "plain": _PLAIN,
    "squared": {"relu2": "relu2", **_PLAIN},
    "t5": {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu"},
}
"""The zoo's words for activations: of gated MLPs, of those without a gate, and as T5 spells both."""


def show(value: object) -> str:
    """``value`` on one short line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"of {value.bit_length()} bits"
    return reprlib.repr(value)[:_MAX_SHOWN]


class Fields:
    """Reads the fields of a configuration with their types; raises ``RequestError`` for missing or wrong ones."""

    def __init__(self, model_type: str, data: Mapping[str, object]) -> None:
        self.model_type = model_type
        self._data = data

    def refuse(self, name: str, problem: str) -> RequestError:
        """The error for a field that cannot be read."""
        return RequestError(f"{self.model_type} configuration: {name} {problem}")

    def size(self, *names: str, default: int | None = None, low: int = 1, automatic: str = "") -> int:
        """The whole number under the first of ``names`` that is given; the word ``automatic`` counts as not given."""
        for name in names:
            value = self._data.get(name)
            if value is None or (automatic and value == automatic):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.refuse(name, f"{show(value)} is not a whole number")
            if not low <= value <= _MAX_SIZE:
                raise self.refuse(name, f"{show(value)} must be between {low} and {_MAX_SIZE:,}")
            return value
        if default is None:
            raise self.refuse(" or ".join(names), "is missing")
        return default

    def fraction(self, name: str, *, default: float) -> float:
        """The number from 0 to 1 under ``name``."""
        value = self._data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.refuse(name, f"{show(value)} must be a number from 0 to 1")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """The truth value under ``name``."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, f"{show(value)} must be true or false")
        return value

    def choice(self, *names: str, default: str, known: Mapping[str, str]) -> str:
        """The zoo's word for the word under the first of ``names`` that is given."""
        for name in names:
            value = self._data.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or value not in known:
                raise self.refuse(name, f"{show(value)} is not supported; known are {', '.join(known)}")
            return known[value]
        return default

    def section(self, name: str) -> Fields:
        """The object under ``name``, empty where it is missing."""
        value = self._data.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.refuse(name, f"{show(value)} is not an object")
        return Fields(f"{self.model_type} {name}", value)

    def length(self, name: str, *, default: int) -> int:
        """How many entries the list or object under ``name`` has."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, list | Mapping):
            raise self.refuse(name, f"{show(value)} is neither a list nor an object")
        return len(value)

    def words(self, name: str) -> list[str]:
        """The list of words under ``name``, empty where it is missing."""
        value = self._data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > _MAX_LAYERS or not all(isinstance(word, str) for word in value):
            raise self.refuse(name, f"{show(value)} is not a list of at most {_MAX_LAYERS} words")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """The list of whole numbers under ``name``."""
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > _MAX_LAYERS or not all(type(number) is int for number in value):
            raise self.refuse(name, f"{show(value)} is not a list of at most {_MAX_LAYERS} whole numbers")
        return value

    def text(self, name: str) -> str:
        """The text under ``name``, empty where it is missing."""
        value = self._data.get(name)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > _MAX_LAYERS:
            raise self.refuse(name, f"{show(value)} is not a short text")
        return value

    def rope_fraction(self, *, default: float = 1.0) -> float:
        """The share of a head that rotary positions turn; newer files have it beside the other rotary settings."""
        nested = self.section("rope_parameters")
        if "partial_rotary_factor" in nested:
            return nested.fraction("partial_rotary_factor", default=default)
        return self.fraction("partial_rotary_factor", default=default)

    def with_defaults(self, **defaults: object) -> Fields:
        """The same fields, those that are missing having the given values."""
        given = {name: value for name, value in self._data.items() if value is not None}
        return Fields(self.model_type, {**defaults, **given})

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def require(self, name: str, value: object, *, why: str) -> None:
        """Raise ``RequestError`` if a field has a value that the zoo cannot build."""
        given = self._data.get(name, value)
        if given is not None and (type(given) is not type(value) or given != value):
            raise self.refuse(name, f"{show(given)} is not supported: {why}")


def seq_of(fields: Fields, *names: str) -> int:
    """The sequence length to forecast: the longest that the model accepts, and at most :data:`DEFAULT_SEQ`."""
    return min(DEFAULT_SEQ, fields.size(*names, default=DEFAULT_SEQ))
