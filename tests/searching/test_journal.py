"""Finished parts of a search are kept, read again, and never taken for those of another one."""

from __future__ import annotations

import gc
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import AnalyticalCostModel
from tests.searching.problems import TINY, problem_for
from traincast import Cluster, CostModel, Estimates, FileFormatError, learned_cost_model, search
from traincast.engines import local_engine
from traincast.searching import explore as exploring
from traincast.searching.bulk.columns import COLUMNS
from traincast.searching.explore import bulk_of, explore
from traincast.searching.journal import from_json, part_name, search_journal, to_json
from traincast.searching.problem import Best, Problem, Task
from traincast.work import Work

FEW = "offload=none,zero=0|1,recompute=none,cp=1,micro_batch<=2"


def few() -> Problem:
    return problem_for(TINY, 4, 8, constraint=FEW)


def keep(folder: Path, problem: Problem, task: Task) -> None:
    """Keep the result of a task as a search does."""
    with search_journal(folder, problem) as journal:
        journal.keep(part_name(task), to_json(*explore(bulk_of(problem), problem, task)))


def has(folder: Path, problem: Problem, task: Task) -> bool:
    """Whether a search of ``problem`` would find the result of ``task``."""
    with search_journal(folder, problem) as journal:
        return part_name(task) in journal.parts


def test_what_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    problem = problem_for(TINY, 4, 8, runtime="nanotron", constraint="offload=none,zero=0,recompute=none")
    folder = tmp_path / "new" / "folder"
    for task in problem.tasks():
        assert not has(folder, problem, task)
        keep(folder, problem, task)
        columns, counts = explore(bulk_of(problem), problem, task)
        with search_journal(folder, problem) as journal:
            kept, kept_counts = from_json(journal.parts[part_name(task)], journal.path)
        assert replace(kept_counts, cpu_s=0.0) == replace(counts, cpu_s=0.0)
        assert kept.cuts == columns.cuts
        for name in COLUMNS:
            assert getattr(kept, name).dtype == getattr(columns, name).dtype
            assert np.array_equal(getattr(kept, name), getattr(columns, name))
    assert len(list(folder.iterdir())) == 1


class Twice:
    """A cost model of a user: all times of another, multiplied."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        found = AnalyticalCostModel().estimate(works, cluster)
        return replace(found, seconds=self.factor * found.seconds)


def test_other_bundles_settings_or_cost_models_have_other_files(tmp_path: Path) -> None:
    problem = few()
    task = problem.tasks()[0]
    shipped = learned_cost_model()
    keep(tmp_path, replace(problem, cost_model=None), task)
    keep(tmp_path, replace(problem, cost_model=Twice(2.0)), task)
    assert has(tmp_path, replace(problem, cost_model=shipped), task)
    assert has(tmp_path, replace(problem, cost_model=Twice(2.0)), task)
    (curves,) = shipped.collectives
    others: list[CostModel] = [Twice(3.0), replace(shipped, bundles=()), replace(shipped, framework="other")]
    for changed in ("knot_log_seconds", "knot_log2_bytes"):
        weights = {name: array + (name == changed) for name, array in curves.weights.items()}
        others.append(replace(shipped, collectives=(replace(curves, weights=weights),)))
    for other in others:
        assert not has(tmp_path, replace(problem, cost_model=other), task)


def test_a_cost_model_that_cannot_be_told_apart_is_like_no_other(tmp_path: Path) -> None:
    model = Twice(2.0)
    model.estimate = lambda works, cluster: AnalyticalCostModel().estimate(works, cluster)  # type: ignore[method-assign]
    problem = replace(few(), cost_model=model)
    keep(tmp_path, problem, problem.tasks()[0])
    assert not has(tmp_path, problem, problem.tasks()[0])


def test_another_version_has_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = few()
    task = problem.tasks()[0]
    keep(tmp_path, problem, task)
    monkeypatch.setattr("traincast.journal.code_digest", lambda: b"another version")
    assert not has(tmp_path, problem, task)
    monkeypatch.undo()
    assert has(tmp_path, problem, task)


def test_another_problem_has_other_files(tmp_path: Path) -> None:
    problem = few()
    task = problem.tasks()[0]
    keep(tmp_path, problem, task)
    request = problem.request
    others = [
        replace(problem, most_memory=problem.most_memory / 2),
        replace(problem, reach=1.1),
        replace(problem, lean=True),
        replace(problem, axes=replace(problem.axes, zero=(0,))),
        replace(problem, cost_model=None),
        replace(problem, request=replace(request, global_batch=16)),
        replace(problem, request=replace(request, runtime=request.runtime.patched(exchange={"bucket_bytes": 1.0}))),
        replace(problem, request=replace(request, cluster=replace(request.cluster, num_nodes=2))),
        problem_for(TINY.replace("layers=4", "layers=5"), 4, 8, constraint=FEW),
    ]
    assert has(tmp_path, problem, task)
    assert has(tmp_path, few(), task)
    for other in others:
        assert not has(tmp_path, other, task)
    assert not has(tmp_path, problem, replace(task, best=Best(fastest_s=1.0)))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("damage", ["cut off", "empty", "other", "without a column", "no bytes"])
def test_a_damaged_part_is_named(tmp_path: Path, damage: str) -> None:
    problem = few()
    task = problem.tasks()[0]
    value = to_json(*explore(bulk_of(problem), problem, task))
    file = BytesIO()
    np.savez(file, tp=np.ones(3))
    value["arrays"] = {
        "cut off": value["arrays"][:400],
        "empty": "",
        "other": b64encode(b"what is this").decode(),
        "without a column": b64encode(file.getvalue()).decode(),
        "no bytes": 7,
    }[damage]
    with pytest.raises(FileFormatError) as caught:
        from_json(value, tmp_path / "x.journal")
    gc.collect()
    assert str(caught.value) == f"{tmp_path / 'x.journal'} is damaged: delete it, and its parts are searched again"


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match=r"file: it is not a folder; name a folder"):
        search_journal(tmp_path / "file", few())


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


@pytest.mark.long(guard="test_a_search_that_is_stopped_goes_on_where_it_was")
def test_parts_that_are_done_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[-1])
        return explore(*arguments)

    monkeypatch.setattr(exploring, "explore", counted)
    whole = searched(tmp_path)
    parts = len(calls)
    (path,) = tmp_path.iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + parts > 2
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:50])
    again = searched(tmp_path)
    assert len(calls) == parts + 1
    assert again.warnings == (*whole.warnings, f"{path}: 1 damaged line at the end dropped")
    assert path.read_bytes().count(b"\n") == len(lines)
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
    (path,) = tmp_path.iterdir()
    assert len(calls) == path.read_bytes().count(b"\n") - 1 == 2
    steps: list[tuple[int, int]] = []
    searched(tmp_path, progress=lambda *at: steps.append(at))
    assert len(calls) == steps[-1][1] == steps[-1][0]
    assert steps[0][0] == 3
