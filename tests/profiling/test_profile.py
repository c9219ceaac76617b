"""``traincast.profile``: one function for operators and collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from traincast import CollectiveRequest, OperatorRequest, RequestError, profile
from traincast.cli.derive import words_of

TINY = "gpt:layers=1,hidden=16,heads=2,vocab=50,seq=8"
OPERATORS = OperatorRequest(models=(TINY,), repeats=2, in_context=False, limit=3)
COLLECTIVES = CollectiveRequest(collectives=("all_reduce",), sizes=(1024, 4096), repeats=2, system="here")


def test_operators_are_measured_once_and_then_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    said: list[tuple[int, int]] = []
    first = profile(OPERATORS, output=path, progress=lambda done, total, what: said.append((done, total)))
    assert first is not None
    assert (first.measured, first.kept, len(first.rows)) == (3, 0, 3)
    assert said[-1] == (3, 3)
    assert all(row["time_us"] > 0 for row in pq.read_table(path).to_pylist())
    again = profile(OPERATORS, output=str(path))
    assert again is not None
    assert (again.measured, again.kept) == (0, 3)
    assert again.rows == first.rows


@pytest.mark.long(
    guard="profiling/test_collectives.py::test_two_local_processes_measure_every_collective_and_go_on_where_a_run_stopped"
)
def test_collectives_are_measured_by_processes_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    found = profile(COLLECTIVES, output=path, ranks=2)
    assert found is not None
    assert (found.measured, found.kept, found.left, found.failures) == (2, 0, 0, ())
    assert [(row["collective"], row["bytes"], row["n_ranks"], row["system"]) for row in found.rows] == [
        ("all_reduce", 1024, 2, "here"),
        ("all_reduce", 4096, 2, "here"),
    ]
    assert all(row["time_us"] > 0 for row in found.rows)


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(RequestError, match="measured in one process"):
        profile(OPERATORS, output=path, ranks=2)
    with pytest.raises(RequestError, match="several processes"):
        profile(COLLECTIVES, output=path)
    with pytest.raises(RequestError, match="ranks 1: expected 2 to 1024"):
        profile(COLLECTIVES, output=path, ranks=1)
    with pytest.raises(RequestError, match=r"must end in \.parquet"):
        profile(OPERATORS, output=tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_request_is_json_for_other_processes_and_words_for_a_launcher() -> None:
    assert words_of(CollectiveRequest()) == []
    request = CollectiveRequest(
        collectives=("p2p", "broadcast"),
        sizes=(1024, 2048),
        groups=(2, 4),
        backend="nccl",
        repeats=3,
        time_limit_s=90.5,
        threads=2,
        source="lab",
        system="box",
        interconnect="NVLink 4",
    )
    assert CollectiveRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    words = words_of(request)
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told == {
        "--ops": "p2p,broadcast",
        "--sizes": "1024,2048",
        "--groups": "2,4",
        "--backend": "nccl",
        "--repeats": "3",
        "--time-limit": "90.5",
        "--threads": "2",
        "--source": "lab",
        "--system": "box",
        "--interconnect": "NVLink 4",
    }
