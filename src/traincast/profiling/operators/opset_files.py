"""Operator sets as JSON files: write, recognize and read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from traincast.errors import FileFormatError
from traincast.files import write_json
from traincast.graph.files import read_json
from traincast.profiling.operators.opset_layers import Operators
from traincast.profiling.rows import PHASES, operator_of, params_of

FORMAT: Final = "traincast-opset"
VERSION: Final = 1


def save_operator_set(by_type: Mapping[str, Operators], path: Path, *, settings: Mapping[str, int]) -> None:
    """Write an operator set to ``path`` as JSON, atomically."""
    operators = [
        [name, op.kind.value, PHASES[op.phase], op.dtype.value, json.loads(params_of(op))]
        for name, chosen in by_type.items()
        for op in chosen
    ]
    data = {"format": FORMAT, "version": VERSION, "settings": dict(settings), "operators": operators}
    write_json(path, data)


def is_operator_set(path: Path) -> bool:
    """Whether a JSON file has the format of an operator set."""
    data = read_json(path)
    return isinstance(data, dict) and data.get("format") == FORMAT


def load_operator_set(path: Path) -> Operators:
    """Read an operator set that :func:`save_operator_set` wrote."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileFormatError(f'{path} is not an operator set of version {VERSION}: it lacks "format": "{FORMAT}"')
    try:
        return tuple(
            operator_of(op, phase, dtype, json.dumps(params)) for _, op, phase, dtype, params in data["operators"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is a damaged operator set: {error}") from error
