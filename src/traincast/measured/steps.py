"""Measured steps of language models: tables that ``validate steps`` and ``calibrate`` read."""

from __future__ import annotations

from typing import Final

from traincast.cluster import Cluster
from traincast.measured.dialect import vocabulary
from traincast.measured.machines import check_device, cluster_of, in_slices, part_of
from traincast.measured.memory import plausible_bytes, stated_bytes
from traincast.measured.models.language import further_tokens, graph_of
from traincast.measured.programs import Strategies, runtime_of
from traincast.measured.rates import seconds_of_rate
from traincast.measured.recipes import grouped_by_length, packed_tokens
from traincast.measured.run import Measured, Reading
from traincast.measured.spellings import Spellings, precision_name
from traincast.measured.stated import check_stated
from traincast.measured.strategies import asked, other_readings
from traincast.measured.tuning.graph import packed_graph, tuned_graph
from traincast.measured.tuning.words import Tuning, trains_adapters, tuning_of
from traincast.strategy import Request
from traincast.strategy.choose import usual_precision, usual_runtime
from traincast.tables import Row, RowError, figure, text, whole

NEEDS: Final = ("source", "gpu", "n_gpus", "seq", "step_time_s")
"""Columns that a table must have if each row names its own machine."""
NEEDS_ON_A_CLUSTER: Final = ("model", "n_gpus", "step_time_s")
"""Columns that a table must have if all rows ran on one given cluster."""
_TIMES: Final = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")
_LONGEST_S: Final = 1e13
"""Larger figures are not times in any unit."""


def has_run(row: Row) -> bool:
    """Return whether the run succeeded, by the column ``status``."""
    return not vocabulary(Spellings).failed(row)


def read_run(index: int, row: Row, *, cluster: Cluster | None = None, allow_code: bool = False) -> Measured:
    """Read one row, of a run that succeeded or failed.

    The run took place on ``cluster`` if it is given, otherwise on the machine that the row describes. A row of a run
    that succeeded must state its time, its throughput or its memory. ``allow_code`` lets the row name a model or a
    schedule that is Python code.
    """
    ran = has_run(row)
    stated = stated_bytes(row) if ran else None
    if ran and stated is None and all(figure(row, key) is None for key in _TIMES):
        raise RowError(f"neither {', '.join(_TIMES)} nor mem_gb is stated")
    reading = read_row(row, cluster=cluster, allow_code=allow_code)
    assumed = list(reading.assumed)
    return Measured(
        index=index,
        source=text(row, "source"),
        request=reading.request,
        memory_bytes=plausible_bytes(row, stated, reading.request.cluster.device, assumed),
        seconds=_seconds(row, reading.request, assumed) if ran else None,
        ran=ran,
        assumed=tuple(assumed),
        others=other_readings(row, reading.request),
    )


def read_timed_run(index: int, row: Row, *, cluster: Cluster | None = None, allow_code: bool = False) -> Measured:
    """Read one row as :func:`read_run` does, and refuse it if the run failed or states neither its time nor a rate.

    A row that names another GPU architecture than that of ``cluster`` is refused as well.
    """
    if not has_run(row):
        raise RowError("the run failed: it has no step time")
    seconds = figure(row, "step_time_s")
    rated = seconds is None and any(figure(row, key) for key in _TIMES)
    if not rated and (seconds is None or not 0.0 < seconds < _LONGEST_S):
        raise RowError(f"step_time_s is {row.get('step_time_s')}: expected seconds above 0")
    if cluster is not None and text(row, "gpu"):
        check_device(text(row, "gpu"), cluster)
    return read_run(index, row, cluster=cluster, allow_code=allow_code)


def _seconds(row: Row, request: Request, assumed: list[str]) -> float | None:
    """Return the seconds of one step, as stated or computed from a rate."""
    seconds = figure(row, "step_time_s")
    if seconds is None:
        return seconds_of_rate(row, request, assumed)
    if not 0.0 < seconds < _LONGEST_S:
        raise RowError(f"step_time_s is {seconds:g}: expected seconds above 0")
    return seconds


def read_row(
    row: Row, *, cluster: Cluster | None = None, allow_code: bool = False, tuning: Tuning | None = None
) -> Reading:
    """Return the request that repeats a row's run, and what was assumed in it.

    With ``cluster``, the run used as many of its nodes as ``n_gpus`` fills. ``tuning`` says which part is trained; if
    it is not given, a row that trains adapters says so in one of its columns.
    """
    if tuning is None and trains_adapters(row):
        tuning = tuning_of(row, method="lora")
    if vocabulary(Strategies).cpu_offload(row):
        raise RowError("parameters are kept in host memory (cpu_offload): this is not modelled")
    assumed = [said] if (said := grouped_by_length(row)) else []
    if cluster is None:
        place = cluster_of(row, assumed, instead=": describe it in a TOML file and give --cluster")
    else:
        place = in_slices(row, part_of(cluster, whole(row, "n_gpus")))
    graph = graph_of(row, assumed, allow_code=allow_code)
    runtime = runtime_of(row, usual=usual_runtime(graph, place), device=place.device, assumed=assumed)
    graph = further_tokens(row, graph, runtime, assumed)
    if tuning is not None:
        graph = tuned_graph(row, graph, runtime, tuning, assumed)
    graph = packed_graph(graph, runtime, packed_tokens(row))
    precision = precision_name(text(row, "precision"), usual=usual_precision(graph, place), assumed=assumed)
    request = asked(
        row, graph=graph, place=place, runtime=runtime, precision=precision, assumed=assumed, allow_code=allow_code
    )
    return check_stated(row, Reading(request=request, assumed=tuple(assumed)))
