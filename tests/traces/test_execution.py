"""Shapes from PyTorch's execution traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made
from traincast import FileFormatError, RequestError
from traincast.traces.changes.hosts import FasterHost
from traincast.traces.files.execution import with_execution, with_executions_beside
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.learn import learn
from traincast.traces.recording.record import record
from traincast.traces.show import summarize_traces
from traincast.traces.whatif import ask

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


def written(path: Path, what: list[dict[str, Any]], *, schema: str = "1.1.1-chakra.0.0.4", pid: int = 1) -> Path:
    text = json.dumps({"schema": schema, "pid": pid, "nodes": what}).encode()
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


def test_an_execution_trace_in_the_same_folder_is_found_by_its_content(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    written(tmp_path / "anything.json.gz", nodes())
    (tmp_path / "settings.json").write_text('{"schema": {"type": "object"}}')
    (joined,) = with_executions_beside([trace])
    assert [joined.shape_of(event).dims for event in joined.of_kind(Kind.OPERATOR)[:2]] == [
        "[[8, 32], [32, 16]]", "[[8, 16]]",
    ]  # fmt: skip
    assert joined.notes == ("shapes are from the execution trace anything.json.gz in the same folder",)


def test_an_execution_trace_of_another_run_beside_a_trace_is_noted_and_left(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    assert with_executions_beside([trace])[0].notes == ()
    other = nodes()
    for node, name in zip(other, reversed(NAMES), strict=True):
        node["name"] = name
    path = written(tmp_path / "et.json", other)
    (left,) = with_executions_beside([trace])
    assert (left.shape == trace.shape).all()
    assert "33% of the operators agree" in left.notes[0]
    assert left.notes[0].endswith("shapes are not taken from it")
    written(path, nodes(), pid=2)
    (left,) = with_executions_beside([trace])
    assert left.notes[0].startswith("the execution trace et.json is of another process than rank0.json")
    path.write_bytes(path.read_bytes()[:200])
    (left,) = with_executions_beside([trace])
    assert "et.json is not an execution trace of PyTorch" in left.notes[0]


def test_of_several_execution_traces_that_match_none_is_taken(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    written(tmp_path / "one.json", nodes())
    written(tmp_path / "two.json", nodes())
    (left,) = with_executions_beside([trace])
    assert left.notes == (
        "several execution traces match rank0.json (one.json, two.json): name one; shapes are not taken from them",
    )


def test_notes_of_a_trace_reach_the_user(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    written(tmp_path / "et.json", nodes())
    (joined,) = with_executions_beside([trace])
    summary = summarize_traces([joined])
    assert summary.notes == joined.notes
    assert not set(summary.notes) & set(summary.missing)
    assert joined.notes[0] in learn([[joined]]).notes
    assert joined.notes[0] in ask(record(joined), [FasterHost(2.0)]).notes
