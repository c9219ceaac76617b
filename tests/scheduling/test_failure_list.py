"""Failures that are known are read from a table as they stand there."""

from __future__ import annotations

import math
from pathlib import Path

from traincast import FailureEvent
from traincast.scheduling.queue.failures import load_failure_events


def test_every_row_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(
        "time_s,kind,target,repair_s,gpu\n5,node,node1,60,\n7.5,device,node0,,3\n9,switch,s1,1e3,\n", encoding="utf-8"
    )
    assert load_failure_events(path) == (
        FailureEvent(time_s=5, kind="node", target="node1", repair_s=60),
        FailureEvent(time_s=7.5, kind="device", target="node0", repair_s=math.inf, gpu=3),
        FailureEvent(time_s=9, kind="switch", target="s1", repair_s=1000),
    )


def test_the_number_of_a_gpu_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("kind,target,time_s,repair_s\nnode,n,0,1\n", encoding="utf-8")
    assert load_failure_events(str(path))[0].gpu == 0
