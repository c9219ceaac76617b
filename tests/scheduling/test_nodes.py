"""Lists of nodes: from a table, or as so many nodes of so many GPUs; bad ones are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast import RequestError
from traincast.scheduling import Node
from traincast.scheduling.space.nodes import load_nodes, uniform_nodes

HEADER = "node,gpu_type,gpus\n"
COUNT = "expected a whole number from 0 to 1024; correct it"
FORM = "expected NODESxGPUS or NODESxGPUS:TYPE, such as 5x8 or 2x8:V100+4x4:T4"

BAD: list[tuple[str, str | None, str]] = [
    ("empty.csv", "", "empty.csv is empty: expected a table or a log with a job or node on each line"),
    ("no_nodes.csv", HEADER, "no_nodes.csv has no nodes: expected one on each line below the header"),
    (
        "uncounted.csv",
        "node,gpu_type\nn0,V100\n",
        "uncounted.csv lacks gpus: a list of nodes needs node, gpu_type and gpus; its columns are node, gpu_type",
    ),
    ("half.csv", HEADER + "n0,V100,1.5\n", f"half.csv: line 2 (node n0) has 1.5 as gpus: {COUNT}"),
    ("minus.csv", HEADER + "n0,V100,8\nn1,V100,-8\n", f"minus.csv: line 3 (node n1) has -8 as gpus: {COUNT}"),
    ("word.csv", HEADER + "n0,V100,eight\n", f"word.csv: line 2 (node n0) has 'eight' as gpus: {COUNT}"),
    ("nothing.csv", HEADER + "n0,V100,\n", f"nothing.csv: line 2 (node n0) has nothing as gpus: {COUNT}"),
    ("many.csv", HEADER + "n0,V100,100000\n", f"many.csv: line 2 (node n0) has 100000 as gpus: {COUNT}"),
    (
        "again.csv",
        HEADER + "n0,V100,8\nn0,V100,8\n",
        "again.csv: line 3 has node n0 again, after line 2: a node is named once; correct it",
    ),
    ("nameless.csv", HEADER + ",V100,8\n", "nameless.csv: line 2 has no node: every node must be named; correct it"),
    (
        "bare.csv",
        "sn,cpu_milli,memory_mib,gpu,model\nn0,1,1,0,\n",
        "bare.csv has no node with a GPU among its 1: give nodes with GPUs",
    ),
    ("none.csv", None, "cannot read none.csv: no such file; give the path of a file"),
    ("0x8", None, "0 nodes of 8 GPUs: expected 1 to 1000000 nodes of 1 to 1024"),
    ("9999999x8", None, "9999999 nodes of 8 GPUs: expected 1 to 1000000 nodes of 1 to 1024"),
    ("5x", None, f"nodes '5x': {FORM}"),
    ("5x8:", None, f"nodes '5x8:': {FORM}"),
    ("5xmany", None, f"nodes '5xmany': {FORM}"),
]


@pytest.mark.parametrize(("what", "content", "line"), BAD, ids=[what for what, _, _ in BAD])
def test_a_bad_list_of_nodes_is_refused_in_one_clear_line(
    what: str, content: str | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(what).write_text(content, encoding="utf-8")
    with pytest.raises(RequestError) as refused:
        load_nodes(what)
    assert str(refused.value) == line
    assert "\n" not in line


def test_nodes_of_a_table_have_its_values(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(
        "node,gpu_type,gpus,rack,switch,vc\nn0,V100,8,r0,s0,research\nn1,T4,4,r1,s0,\nhead,,0,,,\n", encoding="utf-8"
    )
    found = load_nodes(path)
    assert found.nodes == (
        Node(name="n0", num_gpus=8, gpu_type="V100", rack="r0", switch="s0", vc="research"),
        Node(name="n1", num_gpus=4, gpu_type="T4", rack="r1", switch="s0"),
    )
    assert found.notes == (f"{path}: 1 node without GPUs left out",)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0228,128000,786432,8,G3\n",
            Node(name="openb-node-0228", num_gpus=8, gpu_type="G3"),
        ),
        (
            "machine,gpu_type,cap_cpu,cap_mem,cap_gpu\n82e5af3c,T4,96,512,2\n",
            Node(name="82e5af3c", num_gpus=2, gpu_type="T4"),
        ),
        (
            "machineId, number of GPUs, single GPU mem\nm31,8, 24GB\n",
            Node(name="m31", num_gpus=8, gpu_type="24GB"),
        ),
    ],
    ids=["openb", "pai", "philly"],
)
def test_lists_that_others_publish_are_read(text: str, node: Node, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text(text, encoding="utf-8")
    assert load_nodes(path).nodes == (node,)


def test_nodes_are_counted_out_in_words() -> None:
    assert load_nodes("2x8").nodes == (Node(name="node0", num_gpus=8), Node(name="node1", num_gpus=8))
    mixed = load_nodes("1x8:V100 + 2×4:T4").nodes
    assert [(node.name, node.num_gpus, node.gpu_type) for node in mixed] == [
        ("node0", 8, "V100"),
        ("node1", 4, "T4"),
        ("node2", 4, "T4"),
    ]
    assert uniform_nodes(2, 8) == load_nodes("2x8").nodes
