"""Files take their place whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduling.queues import queue
from traincast.errors import FileFormatError
from traincast.scheduling import SharedCluster, simulate
from traincast.scheduling.output import check_writable, write_jobs, write_whole


def test_numbers_are_whole_or_have_all_their_digits(tmp_path: Path) -> None:
    outcome = simulate(queue((0, 1, 1 / 3), (0.1, 0.25, 1e10)), SharedCluster.uniform(1, 1))
    write_jobs(outcome, tmp_path / "jobs.csv")
    rows = [line.split(",") for line in (tmp_path / "jobs.csv").read_text(encoding="utf-8").splitlines()[1:]]
    assert rows[0][:5] == ["a", "0", "0", repr(1 / 3), "1"]
    assert rows[1][4] == "0.25"
    for row, fate in zip(rows, outcome.fates, strict=True):
        assert [float(cell) for cell in row[1:9]] == [
            *(fate.submit_s, fate.start_s, fate.end_s, fate.n_gpus, fate.jct_s, fate.queue_s),
            *(fate.preemptions, fate.restarts),
        ]


def test_a_file_that_is_there_is_replaced_whole_also_behind_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_what_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "jobs.csv", "does not exist"),
        (Path("/proc/jobs.csv"), "cannot write /proc/jobs.csv"),
    ):
        with pytest.raises(FileFormatError, match=message):
            check_writable(path)
    with pytest.raises(FileFormatError, match="does not exist"):
        write_whole(tmp_path / "none" / "jobs.csv", "text")
    check_writable(tmp_path / "jobs.csv")
    assert list(tmp_path.iterdir()) == []
