"""``cluster_log.csv`` of Helios: six months of four clusters of SenseTime, from Slurm.

Columns ``job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue``;
times are dates, ``duration`` is end less start in whole seconds. Jobs of every ``state`` keep their duration. Source:
Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traincast.scheduling.joblogs.source import Source
from traincast.scheduling.joblogs.table import JobColumns, need, read_table

NEEDS: Final = ("job_id", "gpu_num", "submit_time")
_WANTED: Final = (*NEEDS, "user", "vc", "state", "start_time", "end_time", "duration")


def matches(source: Source) -> bool:
    """Whether the columns are those of Helios."""
    return set(NEEDS) <= set(source.header)


def read(source: Source, *, drop_invalid: bool = False) -> JobColumns:
    """Read the jobs with GPUs that ran; submissions are in seconds since 1970."""
    need(source, NEEDS, what="a log of Helios")
    if "duration" not in source.header:
        need(source, ("start_time", "end_time"), what="a log of Helios without duration")
    table = read_table(source, _WANTED, drop_malformed=drop_invalid)
    columns = table.jobs()
    bad = columns.unparsable
    start = table.seconds("start_time", {})
    logged = table.numbers("duration", bad, called="duration_s")
    run = np.where(np.isnan(logged), table.seconds("end_time", {}) - start, logged)
    columns.numbers = {
        "submit_s": table.seconds("submit_time", bad, called="submit_s"),
        "num_gpus": table.numbers("gpu_num", bad, called="num_gpus"),
        "duration_s": run,
    }
    names = {"job_id": "job_id", "user": "user", "vc": "vc", "status": "state"}
    columns.texts = {name: table.texts(column) for name, column in names.items()}
    unread = np.zeros(len(columns), dtype=bool)
    unread[list(bad.get("duration_s", ()))] = True
    started = ~np.isnan(start) if "start_time" in table else np.full(len(columns), True)
    ran = unread | (run < 0) | (run > 0) | (started & (run == 0))
    with_gpus = columns.numbers["num_gpus"] != 0
    columns.keep(with_gpus, "without GPUs")
    columns.keep(ran[with_gpus], "that never ran")
    columns.round_up_short_runs()
    return columns
