"""Graph files: what is written is read back, and what is damaged is refused in one line."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CNN, GPT, LLAMA, graph_of
from traincast import FileFormatError, load_graph, save_graph
from traincast.graph.files import graph_from_dict, graph_to_dict


@pytest.mark.parametrize("spec", [GPT, LLAMA, CNN])
def test_a_graph_reads_back_as_it_was_saved(spec: str, tmp_path: Path) -> None:
    graph = graph_of(spec)
    save_graph(graph, tmp_path / "graph.json")
    read = load_graph(tmp_path / "graph.json")
    assert read == graph
    assert [dict(op.attributes) for op in read.operators] == [dict(op.attributes) for op in graph.operators]
    assert (read.num_parameters, read.flops(), read.num_operators) == (
        graph.num_parameters,
        graph.flops(),
        graph.num_operators,
    )


def test_saving_leaves_nothing_else_behind_and_everyone_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    save_graph(graph_of(GPT), path)
    save_graph(graph_of(GPT), path)
    assert [p.name for p in tmp_path.iterdir()] == ["graph.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_tensor_is_written_once_however_often_it_is_used() -> None:
    data = graph_to_dict(graph_of(GPT))
    written = [json.dumps(t) for t in data["tensors"]]
    assert len(written) == len(set(written)) < sum(len(op[4]) for op in data["operators"])


def test_a_folder_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"the folder .*nowhere does not exist"):
        save_graph(graph_of(GPT), tmp_path / "nowhere" / "graph.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[]", "is not a Traincast graph"),
        ("{}", "is not a Traincast graph"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"format": "traincast-graph", "version": 99}',
            "has graph version 99; this Traincast reads 2: capture the model again",
        ),
        (
            '{"format": "traincast-graph", "version": 2}',
            "is a damaged graph file: name is missing; capture the model again",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=said) as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(FileFormatError, match=f"cannot read {path}"):
            load_graph(path)


def _set(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def _delete(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__delitem__(key)


def _put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: _set(data, path, value)


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "operators[0][1] is 'teleport': expected one of gemm, ": _put("operators", 0, 1, value="teleport"),
    "operators[0][2] is 'sideways': expected one of forward, ": _put("operators", 0, 2, value="sideways"),
    "operators[0] is ['mm']: expected a list of 9 items; ": _put("operators", 0, value=["mm"]),
    "operators[0] has the number 1000000: expected one below ": _put("operators", 0, 4, value=[10**6]),
    "operators[0][4][0] is -1: expected a whole number from 0 to ": _put("operators", 0, 4, value=[-1]),
    "operators[0][4][0] is True: expected a whole number": _put("operators", 0, 4, value=[True]),
    "operators[0], 'embedding', has no cost: ": _put("operators", 0, 5, value=[]),
    "tensors[0][0][0] is -3: expected a whole number": _put("tensors", 0, 0, value=[-3]),
    "tensors[0][0][0] is 1000000000000000000000000000000: ": _put("tensors", 0, 0, value=[10**30]),
    "tensors[0][0][0] is 2.5: expected a whole number": _put("tensors", 0, 0, value=[2.5]),
    "tensors[0][1] is 'fp7': expected one of fp64, fp32": _put("tensors", 0, 1, value="fp7"),
    "tensors[0] has batch dim 9 of ": _put("tensors", 0, 2, value=9),
    "edges has the number 1000000: ": _put("edges", 0, value=[0, 10**6]),
    "edges[0] is [0, 1, 2]: expected a list of 2 whole numbers": _put("edges", 0, value=[0, 1, 2]),
    "forward_of has 0 entries for ": _put("forward_of", value=[]),
    "forward_of has the number 1000000: ": _put("forward_of", 0, value=10**6),
    "blocks[0][1] is 0: expected a whole number from 1": _put("blocks", 0, 1, value=0),
    "blocks[0] has the number 1000000: ": _put("blocks", 0, 2, value=[10**6]),
    "blocks[0][7] is 1: expected true or false": _put("blocks", 0, 7, value=1),
    "it has no forward operators": _put("blocks", value=[]),
    "expected one below 0; ": _put("operators", value=[]),
    "operators[0][8].a is [1]: expected ": _put("operators", 0, 8, value={"a": [1]}),
    "operators[0][8].a is nan: expected ": _put("operators", 0, 8, value={"a": float("nan")}),
    "attributes is [1]: expected a table": _put("attributes", value=[1]),
    "tokens_per_sample is -1: expected a whole number from 0": _put("tokens_per_sample", value=-1),
    "tokens_per_sample is 'many': expected a whole number": _put("tokens_per_sample", value="many"),
    **{f"{key} is missing": _delete(key) for key in ("name", "edges", "forward_of", "blocks", "tensors", "attributes")},
}
"""What is said of a damage, and the damage."""


@pytest.mark.parametrize("said", DAMAGE)
def test_a_damaged_graph_is_refused_with_the_place_and_a_remedy(said: str) -> None:
    data = json.loads(json.dumps(graph_to_dict(graph_of(GPT))))
    DAMAGE[said](data)
    with pytest.raises(FileFormatError, match=r"mine is a damaged graph file: .*; capture the model again$") as caught:
        graph_from_dict(data, where="mine")
    assert "\n" not in str(caught.value)
    assert said in str(caught.value)
