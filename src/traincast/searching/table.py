"""Writes all evaluated strategies of a search to a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from traincast.files import write_bytes
from traincast.report.job import price_per_s
from traincast.searching.answer import Answer
from traincast.searching.space import OFFLOADS, recomputation, recomputes
from traincast.strategy.schedules import SCHEDULES

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]


def write_table(answer: Answer, path: Path) -> int:
    """Write every evaluated strategy, the fastest first, and return their number.

    ``step_s`` and ``cost`` (US dollars of a step) are null if a strategy does not fit. An earlier file at ``path`` is
    replaced only when the new one is complete.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pa.BufferOutputStream()
    pq.write_table(_table(answer), whole, compression="zstd")
    write_bytes(path, whole.getvalue())
    return len(answer.columns)


def _table(answer: Answer) -> pa.Table:
    import pyarrow as pa

    found = answer.columns
    columns = found.take(found.order(found.seconds))
    clusters = [request.cluster for request in answer.requests]
    number, seconds = columns.cluster.astype(np.int64), columns.seconds
    techniques = [recomputation(value) for value in recomputes()]
    fits = np.isfinite(seconds)
    rates = np.array([price_per_s(cluster) for cluster in clusters])[number]
    return pa.table(
        {
            "cluster": _named(number, [cluster.name for cluster in clusters]),
            "nodes": np.array([cluster.num_nodes for cluster in clusters], dtype=np.int32)[number],
            "dp": columns.dp,
            "tp": columns.tp,
            "pp": columns.pp,
            "cp": columns.cp,
            "ep": columns.ep,
            "micro_batch": columns.micro_batch,
            "num_microbatches": columns.num_microbatches,
            "virtual_stages": columns.virtual_stages,
            "schedule": _named(columns.schedule, list(SCHEDULES)),
            "zero": columns.zero,
            "sequence_parallel": pa.array(columns.sequence_parallel, pa.bool_()),
            "recompute": _named(columns.recompute, [name for name, _ in techniques]),
            "recompute_every": np.array([every for _, every in techniques], np.int8)[columns.recompute],
            "offload": _named(columns.offload, ["+".join(offload) for offload in OFFLOADS.values()]),
            "layers": _named(columns.cut, ["/".join(map(str, layers)) for layers in columns.cuts]),
            "memory_bytes": columns.memory.astype(np.float64),
            "step_s": pa.array(np.where(fits, seconds, 0.0), mask=~fits),
            "fits": pa.array(fits, pa.bool_()),
            "cost": pa.array(np.where(fits, seconds, 0.0) * rates, mask=~fits),
        }
    )


def _named(numbers: Array, names: Sequence[str]) -> pa.Array:
    """Return the names of ``numbers`` as a dictionary column, which stores each distinct name once."""
    import pyarrow as pa

    known = list(dict.fromkeys(names))
    codes = np.array([known.index(name) for name in names], dtype=np.int32)[numbers.astype(np.int64)]
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(known, pa.string()))
