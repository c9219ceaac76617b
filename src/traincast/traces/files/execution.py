"""PyTorch's execution traces: the operators of a run with their inputs, but without times.

``ExecutionTraceObserver`` writes them beside a profiler's trace of the same run. They state the shapes of all inputs,
so a profiler's trace that was recorded without shapes gets them from there: each operator has a number
(``rf_id``), which the profiler's events carry as ``Record function id``, or as ``External id`` in older releases.
The operating system's number of the process tells runs of one program apart where files are found, not named.
Schemas 1.0 (fields beside the name) and 1.1 (``inputs`` and ``attrs``) are read.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from traincast.errors import FileFormatError, RequestError
from traincast.traces.files.kineto import Kind
from traincast.traces.files.load import SUFFIXES, rank_in_name
from traincast.traces.files.trace import NONE, Ints, ProfilerTrace, RecordedShape

_GZIP: Final = b"\x1f\x8b"
_TENSOR: Final = re.compile(r"^Tensor\((.*)\)$")
_TENSORS: Final = re.compile(r"^GenericList\[Tensor\(")
_LIST: Final = re.compile(r"^GenericList\[")
_BEGIN: Final = re.compile(rb'^(?:\xef\xbb\xbf)?\s*\{\s*"schema"\s*:\s*"\d+\.[^"]*"')
_BEGIN_BYTES: Final = 256
_AGREES: Final = 0.9
"""Least share of the operators with a number in both files whose names must be equal."""
_FOUND: Final = 0.5
"""Least share of the profiler's operators that must be in the execution trace."""


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Values(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []


class _Node(msgspec.Struct):
    name: str
    rf_id: int = 0
    inputs: _Values | list[Any] = msgspec.field(default_factory=list)
    input_shapes: list[Any] = []
    input_types: list[str] = []
    attrs: list[_Attribute] = []

    @property
    def number(self) -> int:
        """Its number in the run."""
        return next((int(a.value) for a in self.attrs if a.name == "rf_id"), self.rf_id)

    @property
    def given(self) -> _Values:
        """Its inputs, of either schema."""
        if isinstance(self.inputs, _Values):
            return self.inputs
        return _Values(self.inputs, self.input_shapes, self.input_types)


class _Document(msgspec.Struct):
    schema: str
    nodes: list[_Node]
    pid: int = 0


class AnotherRunError(RequestError):
    """An execution trace is not of the run of the profiler's trace."""


def with_execution(traces: Sequence[ProfilerTrace], paths: Sequence[Path]) -> list[ProfilerTrace]:
    """Return traces with the shapes of the execution traces of the same ranks, one each.

    Files are matched by the rank in their names, or else by their order.
    """
    if len(paths) != len(traces):
        raise RequestError(f"{len(traces)} traces need as many execution traces, but {len(paths)} were given")
    ranks = [rank_in_name(path) for path in paths]
    by_rank = dict(zip(ranks, paths, strict=True))
    named = set(ranks) == {trace.rank for trace in traces}
    chosen = [by_rank[trace.rank] if named else path for trace, path in zip(traces, paths, strict=True)]
    return [_joined(trace, path, _read(path)) for trace, path in zip(traces, chosen, strict=True)]


def with_executions_beside(traces: Sequence[ProfilerTrace]) -> list[ProfilerTrace]:
    """Return traces without shapes with those of the execution traces in their folders, if exactly one matches each.

    Otherwise a note of the trace says why none was taken. Files of other content, and traces that state shapes, stay
    as they are.
    """
    found: dict[Path, _Document | str] = {}
    for folder in {trace.path.parent for trace in traces if not _states_shapes(trace)}:
        for path in sorted(folder.iterdir()):
            if _looks_like_one(path):
                try:
                    found[path] = _read(path)
                except FileFormatError as error:
                    found[path] = str(error)
    return [trace if _states_shapes(trace) else _joined_beside(trace, found) for trace in traces]


def _states_shapes(trace: ProfilerTrace) -> bool:
    return bool((trace.shape[trace.of_kind(Kind.OPERATOR)] != NONE).any())


def _looks_like_one(path: Path) -> bool:
    """Whether a file begins as an execution trace does."""
    if not path.name.endswith(SUFFIXES) or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            return _BEGIN.match(file.read(_BEGIN_BYTES)) is not None
    except (OSError, EOFError, zlib.error):
        return False


def _joined_beside(trace: ProfilerTrace, found: Mapping[Path, _Document | str]) -> ProfilerTrace:
    beside = {path: one for path, one in found.items() if path.parent == trace.path.parent}
    ranked = {path: one for path, one in beside.items() if rank_in_name(path) == trace.rank}
    joined: dict[str, ProfilerTrace] = {}
    refused: list[str] = []
    for path, document in (ranked or beside).items():
        if isinstance(document, str):
            refused.append(document)
            continue
        if document.pid > 0 and str(document.pid) not in {process for process, _ in trace.lanes}:
            refused.append(f"the execution trace {path.name} is of another process than {trace.path.name}")
            continue
        try:
            joined[path.name] = _joined(trace, path, document)
        except AnotherRunError as error:
            refused.append(str(error))
    if len(joined) == 1:
        ((name, one),) = joined.items()
        return replace(one, notes=(*trace.notes, f"shapes are from the execution trace {name} in the same folder"))
    if joined:
        several = f"several execution traces match {trace.path.name} ({', '.join(joined)}): name one"
        return replace(trace, notes=(*trace.notes, f"{several}; shapes are not taken from them"))
    notes = [f"{text}; shapes are not taken from it" for text in refused]
    return replace(trace, notes=(*trace.notes, *notes))


def _joined(trace: ProfilerTrace, path: Path, document: _Document) -> ProfilerTrace:
    nodes = {node.number: node for node in document.nodes if node.number > 0}
    operators = trace.of_kind(Kind.OPERATOR)
    best: tuple[float, Ints] | None = None
    for numbers in (trace.record, trace.external):
        known = operators[np.isin(numbers[operators], list(nodes))]
        if not len(known):
            continue
        agree = np.array([nodes[int(numbers[e])].name == trace.name_of(e) for e in known.tolist()], dtype=bool)
        share = float(agree.mean())
        if len(known) >= _FOUND * len(operators) and (best is None or share > best[0]):
            best = (share, numbers)
    if best is None or best[0] < _AGREES:
        how = "none" if best is None else f"{best[0]:.0%}"
        raise AnotherRunError(
            f"{path} is not the execution trace of the run in {trace.path}: {how} of the operators agree by number and "
            "name; give that of the same run"
        )
    numbers, shapes = best[1], list(trace.shapes)
    places: dict[RecordedShape, int] = {}
    shape = trace.shape.copy()
    for event in operators[shape[operators] == NONE].tolist():
        node = nodes.get(int(numbers[event]))
        if node is None or node.name != trace.name_of(event):
            continue
        stated = _shape(node.given)
        if stated not in places:
            places[stated] = len(shapes)
            shapes.append(stated)
        shape[event] = places[stated]
    return replace(trace, shape=shape, shapes=tuple(shapes))


def _read(path: Path) -> _Document:
    try:
        text = path.read_bytes()
        if text.startswith(_GZIP):
            text = gzip.decompress(text)
        return msgspec.json.decode(text, type=_Document)
    except FileNotFoundError:
        raise FileFormatError(f"execution trace {path} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"cannot read execution trace {path}: it is damaged, cut or no file") from error
    except msgspec.MsgspecError as error:
        raise FileFormatError(
            f"{path} is not an execution trace of PyTorch: {error}; give what ExecutionTraceObserver wrote"
        ) from error


def _shape(given: _Values) -> RecordedShape:
    """Return the inputs of an operator as the profiler writes them."""
    dims: list[Any] = []
    types, concrete = [], []
    for value, shape, kind in zip(given.values, given.shapes, given.types, strict=False):
        tensor = _TENSOR.match(kind)
        dims.append(shape if tensor or _TENSORS.match(kind) else [])
        if tensor:
            types.append(tensor[1])
        elif _TENSORS.match(kind):
            types.append("TensorList")
        else:
            types.append("ScalarList" if _LIST.match(kind) else "Scalar")
        concrete.append("" if tensor or _TENSORS.match(kind) or value is None else _text(value))
    return RecordedShape(json.dumps(dims), json.dumps(types), json.dumps(concrete))


def _text(value: Any) -> str:
    """Return a value as the profiler writes it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    return str(value)
