"""Folders of runs made from forecasts: what a perfect testbed would measure, with chosen disturbances."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traincast import Conditions, Forecast, predict
from traincast.report.trace import lanes_by_row
from traincast.strategy import Category
from traincast.testbed.activity import class_of

TINY = "gpt:layers=2,hidden=128,heads=4,vocab=512,seq=64"
CLUSTER = """[cluster]
node = "cpu-server"
num_nodes = {nodes}
"""
Span = dict[str, Any]


def forecast_for(
    strategy: str,
    ranks: int,
    *,
    model: str = TINY,
    batch: int = 8,
    runtime: str = "ddp",
    slow: Sequence[tuple[int, float]] = (),
) -> Forecast:
    """The forecast that a comparison with the folder should make."""
    return predict(
        model, cluster=f"cpu-server:{ranks}", strategy=strategy, global_batch=batch, precision="fp32", runtime=runtime,
        conditions=Conditions(slow=tuple(slow)) if slow else None, use_cache=True,
    )  # fmt: skip


def spans_of(forecast: Forecast, step: int = 0) -> list[Span]:
    """The spans of a forecast as a run records them: one row per task of a rank."""
    timeline = forecast.detailed(all_ranks=True)
    plan = timeline.plan
    task, _, starts = lanes_by_row(plan)
    rank = plan.ranks[np.repeat(np.arange(len(plan.ranks)), np.diff(starts))]
    rows = []
    for number, of in zip(task.tolist(), rank.tolist(), strict=True):
        category = Category(int(plan.category[number])).name.lower()
        communicates = category == "communication"
        if category in ("host", "wait") or (communicates and of >= plan.mesh.num_ranks):
            continue
        label = plan.labels[plan.label[number]]
        rows.append({
            "rank": of, "step": step, "microbatch": int(plan.microbatch[number]),
            "stream": "communication" if communicates else "compute", "category": category,
            "label": class_of(label) if communicates else category, "name": label,
            "start_s": float(timeline.start[number]), "end_s": float(timeline.end[number]), "nbytes": 0.0,
        })  # fmt: skip
    return rows


def write_run(
    folder: Path,
    strategy: str,
    ranks: int,
    *,
    steps: int = 3,
    change: Callable[[Span], Span | None] | None = None,
    steps_s: Sequence[float] | None = None,
    factors: Sequence[float] = (),
    **more: Any,
) -> Forecast:
    """Write the folder of a run whose steps are those of a forecast, each span changed by ``change``."""
    slow = [(rank, factor) for rank, factor in enumerate(factors) if factor != 1.0]
    made = forecast_for(strategy, ranks, slow=slow, **more)
    rows = [span for step in range(steps) for span in spans_of(made, step)]
    if change is not None:
        rows = [span for span in map(change, rows) if span is not None]
    folder.mkdir(parents=True, exist_ok=True)
    types = {"rank": pa.int32(), "step": pa.int32(), "microbatch": pa.int32()}
    columns = {
        name: pa.array([row[name] for row in rows], type=types.get(name)) if rows else pa.array([], type=pa.string())
        for name in ("rank", "step", "microbatch", "stream", "category", "label", "name", "start_s", "end_s", "nbytes")
    }
    pq.write_table(pa.table(columns), folder / "spans.parquet")
    (folder / "cluster.toml").write_text(CLUSTER.format(nodes=ranks))
    times = list(steps_s or [made.report.step_s] * steps)
    mean = sum(times) / len(times)
    content = {
        "format": 1, "model": more.get("model", TINY), "strategy": strategy,
        "ranks": [
            {"rank": rank, "node": rank, "device": "cpu", "factor": dict(slow).get(rank, 1.0), "rate": None}
            for rank in range(ranks)
        ],
        "num_ranks": ranks, "global_batch": more.get("batch", 8), "seq": None, "precision": "fp32", "compute": "real",
        "network": "loopback", "runtime": more.get("runtime", "ddp"), "cluster": "cluster.toml",
        "step_s": mean, "steps_s": times, "repeat_cv": float(np.std(times) / mean), "started": "2026-01-01T00:00:00",
        "torch": "2.9", "warnings": [],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(content))
    return made
