"""The table of jobs."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling.queues import queue
from traincast import SharedCluster
from traincast.scheduling import simulate
from traincast.scheduling.queue.outcome import write_jobs


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
