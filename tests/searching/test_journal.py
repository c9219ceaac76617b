"""Finished parts of a search are kept, read again, and never taken for those of another one."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import AnalyticalCostModel
from tests.searching.problems import TINY, problem_for
from traincast.engines import local_engine
from traincast.errors import FileFormatError
from traincast.estimate import learned_cost_model
from traincast.searching import explore as exploring
from traincast.searching.columns import COLUMNS
from traincast.searching.explore import bulk_of, explore
from traincast.searching.journal import SearchJournal
from traincast.searching.problem import Problem
from traincast.searching.search import search

FEW = "offload=none,zero=0|1,recompute=none,cp=1,micro_batch<=2"


def few() -> Problem:
    return problem_for(TINY, 4, 8, constraint=FEW)


def test_what_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    problem = problem_for(TINY, 4, 8, runtime="nanotron", constraint="offload=none,zero=0,recompute=none")
    journal = SearchJournal(tmp_path / "new" / "folder", problem)
    for task in problem.tasks():
        columns, counts = explore(bulk_of(problem), problem, task)
        assert journal.read(task) is None
        journal.write(task, columns, counts)
        kept = journal.read(task)
        assert kept is not None
        assert kept[1] == counts
        assert kept[0].cuts == columns.cuts
        for name in COLUMNS:
            assert getattr(kept[0], name).dtype == getattr(columns, name).dtype
            assert np.array_equal(getattr(kept[0], name), getattr(columns, name))
    assert not list(tmp_path.rglob("*.part"))


def test_other_bundles_of_operators_or_collectives_have_other_files(tmp_path: Path) -> None:
    problem = few()
    task = problem.tasks()[0]
    SearchJournal(tmp_path, replace(problem, cost_model=None)).write(task, *explore(bulk_of(problem), problem, task))
    shipped = learned_cost_model()
    assert SearchJournal(tmp_path, replace(problem, cost_model=shipped)).read(task) is not None
    (curves,) = shipped.collectives
    slower = {name: array + (name == "knot_log_seconds") for name, array in curves.weights.items()}
    for other in (replace(shipped, bundles=()), replace(shipped, collectives=(replace(curves, weights=slower),))):
        assert SearchJournal(tmp_path, replace(problem, cost_model=other)).read(task) is None


def test_another_problem_has_other_files(tmp_path: Path) -> None:
    problem = few()
    task = problem.tasks()[0]
    SearchJournal(tmp_path, problem).write(task, *explore(bulk_of(problem), problem, task))
    request = problem.request
    others = [
        replace(problem, most_memory=problem.most_memory / 2),
        replace(problem, reach=1.1),
        replace(problem, axes=replace(problem.axes, zero=(0,))),
        replace(problem, cost_model=None),
        replace(problem, request=replace(request, global_batch=16)),
        replace(problem, request=replace(request, runtime=replace(request.runtime, bucket_bytes=1.0))),
        replace(problem, request=replace(request, cluster=replace(request.cluster, num_nodes=2))),
        problem_for(TINY.replace("layers=4", "layers=5"), 4, 8, constraint=FEW),
    ]
    assert SearchJournal(tmp_path, problem).read(task) is not None
    assert SearchJournal(tmp_path, few()).read(task) is not None
    for other in others:
        assert SearchJournal(tmp_path, other).read(task) is None
    assert SearchJournal(tmp_path, problem).read(replace(task, best_s=1.0)) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NumPy leaves the file open
@pytest.mark.parametrize(
    "damage",
    ["cut off", "empty", "other", "without a column"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    problem = few()
    task = problem.tasks()[0]
    journal = SearchJournal(tmp_path, problem)
    journal.write(task, *explore(bulk_of(problem), problem, task))
    (path,) = tmp_path.iterdir()
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other":
        path.write_text("what is this")
    else:
        np.savez(path, tp=np.ones(3))
    with pytest.raises(FileFormatError) as caught:
        journal.read(task)
    gc.collect()
    assert str(caught.value) == f"{path} is damaged: take it away, and that part is searched again"


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match=r"file: it is no folder; name another one"):
        SearchJournal(tmp_path / "file", few())


def searched(tmp_path: Path, **other: Any) -> Any:
    return search(
        TINY,
        cluster="dgx-a100:1x4",
        global_batch=8,
        constraint=FEW,
        resume=tmp_path,
        engine=local_engine(1),
        cost_model=AnalyticalCostModel(),
        use_cache=True,
        **other,
    )


def test_parts_that_are_done_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[-1])
        return explore(*arguments)

    monkeypatch.setattr(exploring, "explore", counted)
    whole = searched(tmp_path)
    parts = len(calls)
    assert parts == len(list(tmp_path.iterdir())) > 1
    lost = sorted(tmp_path.iterdir())[0]
    lost.unlink()
    again = searched(tmp_path)
    assert len(calls) == parts + 1
    assert lost.exists()
    kept = searched(tmp_path).counts
    assert replace(kept, works=0) == replace(again.counts, works=0) == replace(whole.counts, works=0)
    assert len(calls) == parts + 1
    assert [str(c.strategy) for c in again.candidates] == [str(c.strategy) for c in whole.candidates]


def test_a_search_that_is_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[-1])
        return explore(*arguments)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(exploring, "explore", counted)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, progress=stop)
    assert len(calls) == len(list(tmp_path.iterdir())) == 2
    steps: list[tuple[int, int]] = []
    searched(tmp_path, progress=lambda *at: steps.append(at))
    assert len(calls) == steps[-1][1] == steps[-1][0]
    assert steps[0][0] == 3
