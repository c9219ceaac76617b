"""Shapes from PyTorch's execution traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made
from traincast.errors import FileFormatError, RequestError
from traincast.traces.execution import with_execution
from traincast.traces.learn import learn
from traincast.traces.trace import ProfilerTrace

NAMES = ("aten::mm", "aten::relu", "aten::convolution")


def traced(folder: Path, *, named: str = "Record function id") -> ProfilerTrace:
    """Three operators without shapes, numbered from 11."""
    made = Made()
    made.range("ProfilerStep#0", 0, 100)
    for number, name in enumerate(NAMES):
        made.op(name, 30 * number, 30 * number + 25, **{named.replace(" ", "__"): 11 + number})
    made.document = lambda: {"traceEvents": made.events}  # type: ignore[method-assign]
    return made.trace(folder)


def inputs(name: str) -> dict[str, Any]:
    tensor, tensors = [1, 2, 0, 8, 4, "cpu"], "Tensor(float)"
    match name:
        case "aten::mm":
            return {"values": [tensor] * 2, "shapes": [[8, 32], [32, 16]], "types": [tensors] * 2}
        case "aten::relu":
            return {"values": [tensor], "shapes": [[8, 16]], "types": [tensors]}
        case _:
            return {
                "values": [tensor, tensor, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1],
                "shapes": [[4, 3, 8, 8], [16, 3, 3, 3], [], [[]], [[]], [[]], [], [[]], []],
                "types": [
                    tensors,
                    tensors,
                    "None",
                    *["GenericList[Int,Int]"] * 3,
                    "Bool",
                    "GenericList[Int,Int]",
                    "Int",
                ],
            }


def nodes(*, old: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, name in enumerate(NAMES, 11):
        given = inputs(name)
        if old:
            found.append(
                {"name": name, "id": 100 + number, "rf_id": number, "inputs": given["values"],
                 "input_shapes": given["shapes"], "input_types": given["types"]}
            )  # fmt: skip
        else:
            attrs = [{"name": "rf_id", "type": "uint64", "value": number}]
            found.append({"name": name, "id": 100 + number, "ctrl_deps": 1, "inputs": given, "attrs": attrs})
    return found


def written(path: Path, what: list[dict[str, Any]], *, schema: str = "1.1.1-chakra.0.0.4") -> Path:
    text = json.dumps({"schema": schema, "pid": 1, "nodes": what}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(("old", "named"), [(False, "Record function id"), (True, "External id")])
def test_shapes_come_from_the_execution_trace_of_the_same_run(old: bool, named: str, tmp_path: Path) -> None:
    trace = traced(tmp_path, named=named)
    with pytest.raises(RequestError, match="no shapes"):
        learn([[trace]])
    path = written(tmp_path / "et.json.gz", nodes(old=old))
    rows = learn([with_execution([trace], [path])]).rows
    keys = [json.loads(row["key"]) for row in rows if row["kind"] == "operator"]
    assert [(key[1], key[3][0][0]) for key in keys] == [
        ("mm", [8, 32]), ("relu", [8, 16]), ("convolution", [4, 3, 8, 8]),
    ]  # fmt: skip
    assert keys[2][5] == {"stride": 1, "kernel": 3, "groups": 1, "transposed": False}


def test_shapes_that_the_trace_states_are_kept(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::relu", 0, 9, Record__function__id=12, Input__Dims=[[3, 5]], Input__type=["float"])
    joined = with_execution([made.trace(tmp_path)], [written(tmp_path / "et.json", nodes())])
    assert joined[0].shape_of(0).dims == "[[3, 5]]"


def test_the_execution_trace_of_another_run_is_refused(tmp_path: Path) -> None:
    other = nodes()
    for node, name in zip(other, reversed(NAMES), strict=True):
        node["name"] = name
    with pytest.raises(RequestError, match="33% of the operators agree"):
        with_execution([traced(tmp_path)], [written(tmp_path / "et.json", other)])


def test_files_that_are_no_execution_traces_are_refused(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    with pytest.raises(FileFormatError, match="is not an execution trace"):
        with_execution([trace], [tmp_path / "rank0.json"])
    with pytest.raises(FileFormatError, match="does not exist"):
        with_execution([trace], [tmp_path / "missing.json"])
    with pytest.raises(RequestError, match="1 traces need as many"):
        with_execution([trace], [])
