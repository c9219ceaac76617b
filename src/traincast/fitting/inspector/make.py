"""Simulate many runs, and write the use of their resources as a table to fit an inspector to.

Runs are independent tasks of an engine (processes of this machine, or Ray). Finished runs are kept in a journal, so an
interrupted command resumes where it was. Their settings are the fourteen of Driple, each also with an all-reduce, and
settings of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.ask import verb
from traincast.engines import local_engine
from traincast.errors import RequestError, TraincastError
from traincast.estimate.resource_use import ResourceUse
from traincast.fitting.inspector.ask import SimulateAsk
from traincast.fitting.inspector.runs import request_of, use_columns, write_runs
from traincast.forecast import forecast
from traincast.graph.zoo import card, names
from traincast.journal import Journal, key_of
from traincast.resources.curves import uses_of
from traincast.resources.forecasting import forecast_curves
from traincast.strategy import Request
from traincast.strategy.prepare import for_workers, need_only

_GBIT: Final = 0.125e9

DRIPLE: Final[dict[str, dict[str, Any]]] = {
    "1 V100 P1w2": {"device": "v100-pcie-16gb", "servers": 1, "workers": 2, "nodes": 1},
    "2 V100 P2w2": {"device": "v100-pcie-16gb", "servers": 2, "workers": 2, "nodes": 1},
    "3 2080Ti P1w2": {"device": "rtx-2080-ti", "servers": 1, "workers": 2, "nodes": 1},
    "4 2080Ti P1w3": {"device": "rtx-2080-ti", "servers": 1, "workers": 3, "nodes": 1},
    "5 2080Ti P2w2": {"device": "rtx-2080-ti", "servers": 2, "workers": 2, "nodes": 1},
    "6 TitanRTX P2w2": {"device": "titan-rtx", "servers": 2, "workers": 2, "nodes": 1},
    "7 2080Ti P2w2 40G": {"device": "rtx-2080-ti", "servers": 2, "workers": 2, "nodes": 2, "gbit": 40},
    "8 TitanRTX P2w2 40G": {"device": "titan-rtx", "servers": 2, "workers": 2, "nodes": 2, "gbit": 40},
    "9 2080Ti P4w4 40G": {"device": "rtx-2080-ti", "servers": 4, "workers": 4, "nodes": 2, "gbit": 40},
    "10 TitanRTX P4w4 40G": {"device": "titan-rtx", "servers": 4, "workers": 4, "nodes": 2, "gbit": 40},
    "11 V100 P5w5 1G": {"device": "v100-pcie-16gb", "servers": 5, "workers": 5, "nodes": 5, "gbit": 1},
    "12 2080Ti P5w5 1G": {"device": "rtx-2080-ti", "servers": 5, "workers": 5, "nodes": 5, "gbit": 1},
    "13 V100 P5w10 1G": {"device": "v100-pcie-16gb", "servers": 5, "workers": 10, "nodes": 5, "gbit": 1},
    "14 2080Ti P5w10 1G": {"device": "rtx-2080-ti", "servers": 5, "workers": 10, "nodes": 5, "gbit": 1},
}
"""The settings of the paper: P servers and w workers. One node is joined by PCIe."""

_TODAY: Final = (
    "dgx-a100", "dgx-h100", "dgx-1-v100", "pcie-t4", "pcie-a40", "pcie-l40s", "pcie-p100", "pcie-a100", "pcie-h100",
    "dgx-b200",
)  # fmt: skip
_RATES: Final = (0.0, 0.0, 1.0, 10.0, 25.0, 100.0)
"""Gbit/s of the network between nodes; 0: that of the catalog."""
_MOST_PARAMETERS: Final = (4e8, 8e9)
"""Parameters of the largest models in Driple's settings, and in those of today."""
_LEFT_OUT: Final = ("dlrm", "dcnv2", "moflow", "efficientdet-d2", "efficientdet-d3", "efficientdet-d4", "bridgetower")
"""Models whose tables fill a node, or which take long to simulate."""


_MOST_SERVED: Final = 8
"""Most workers with parameter servers in settings of today."""


def drawn(count: int, *, seed: int, models: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield ``count`` runs to simulate, as rows without figures: half in Driple's settings, half in those of today.

    ``batch_share`` says how large the batch is to be: 1 is the largest that fits, 0.5 half of that, and so on. The same
    seed gives the same runs; a larger count begins with the same ones.
    """
    sized = {
        name: float(card(name).published.get("parameters", 0.0))
        for name in models or names()
        if not name.startswith(_LEFT_OUT)
    }
    known = [[name for name, size in sized.items() if size <= most] for most in _MOST_PARAMETERS]
    for number in range(count):
        pick = np.random.default_rng([seed, number])
        kind = int(pick.random() < 0.5)
        row = _today(pick) if kind else _driple(pick)
        yield {
            "number": number,
            "model": str(pick.choice(known[kind])),
            "batch_share": float(0.5 ** pick.integers(0, 5)),
            **row,
        }


def _driple(pick: np.random.Generator) -> dict[str, Any]:
    name = str(pick.choice(list(DRIPLE)))
    setting: Mapping[str, Any] = DRIPLE[name]
    servers = setting["servers"] if pick.random() < 0.67 else 0
    spread = setting["nodes"] > 1
    row = {
        "setting": name if servers else f"{name.rpartition(' P')[0]} w{setting['workers']} all-reduce",
        "strategy": f"dp={setting['workers']}" + (f",servers={servers}" if servers else ""),
        "precision": "fp32",
        "device": setting["device"],
        "nodes": setting["nodes"],
        "devices_per_node": setting["workers"] // setting["nodes"],
    }
    if not servers and spread:
        row["setting"] += f" {setting['gbit']}G"
    return row | ({"link_bytes_s": setting["gbit"] * _GBIT} if spread else {})


def _today(pick: np.random.Generator) -> dict[str, Any]:
    node, nodes, devices = str(pick.choice(_TODAY)), int(pick.choice([1, 1, 2, 4])), int(pick.choice([1, 2, 4, 8]))
    ranks = nodes * devices
    rate = float(pick.choice(_RATES)) if nodes > 1 else 0.0
    kind = str(pick.choice(["dp", "dp", "zero", "servers", "tensor", "pipeline"]))
    row: dict[str, Any] = {
        "setting": f"{node} {nodes}x{devices} {kind}" + (f" {rate:g}G" if rate else ""),
        "cluster": f"{node}:{nodes}x{devices}",
    }
    if rate:
        row["link_bytes_s"] = rate * _GBIT
    half = int(pick.choice([2, 4]))
    split = ranks % half == 0 and ranks >= half
    row["strategy"] = {
        "dp": f"dp={ranks}",
        "zero": f"dp={ranks},zero={3 if pick.random() < 0.7 else 1}",
        "servers": f"dp={ranks}" + (f",servers={nodes * int(pick.choice([1, 2]))}" if ranks <= _MOST_SERVED else ""),
        "tensor": f"dp={ranks // half},tp={half}" if split and devices % half == 0 else f"dp={ranks}",
        "pipeline": f"dp={ranks // half},pp={half},microbatches={half * int(pick.choice([2, 4]))}"
        if split
        else f"dp={ranks}",
    }[kind]
    return row


SETUP: Final = "traincast.fitting.inspector.make:worker"
_LARGEST_BATCH: Final = 256
_MOST_STEP_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRuns:
    """How many runs were simulated and written to ``table``; others were left out: they fit no memory or no rule."""

    table: Path
    written: int
    left_out: int

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, for JSON."""
        return {"table": str(self.table), "runs": self.written, "left_out": self.left_out}


@verb(SimulateAsk)
def simulate_resources(ask: SimulateAsk) -> MadeRuns:
    """Simulate ``runs`` runs, and write those that are possible to ``output``, a .csv or .csv.gz file.

    They are drawn by ``seed`` over all models, or over ``models``. ``engine`` comes from :func:`traincast.load_engine`;
    without it, they run one after the other. The journal is the file ``output`` with ``.journal`` at its end. It is
    removed when the table is written.
    """
    output = Path(ask.output)
    if not output.name.endswith((".csv", ".csv.gz")):
        raise RequestError(f"{output}: expected a name that ends in .csv or .csv.gz")
    rows = list(drawn(ask.runs, seed=ask.seed, models=ask.models))
    path = output.with_name(f"{output.name}.journal")
    with Journal(path, kind="simulated runs", key=key_of(ask.seed, *ask.models), sync=False) as journal:
        left = [row for row in rows if str(row["number"]) not in journal.parts]
        finished = len(rows) - len(left)

        def done(index: int, made: Any) -> None:
            nonlocal finished
            journal.keep(str(left[index]["number"]), made)
            finished += 1
            if ask.progress is not None:
                ask.progress(finished, ask.runs)

        (ask.engine or local_engine(1)).run(SETUP, None, left, done=done)
        found = [journal.parts[str(row["number"])] for row in rows]
        kept = [row for row in found if row is not None]
        write_runs(output, kept)
        journal.remove()
    return MadeRuns(table=output, written=len(kept), left_out=ask.runs - len(kept))


def worker(_: None) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    """Set up a worker of an engine: return the function that simulates one run."""
    return simulated_row


def simulated_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``row`` with its batch and its figures, or ``None`` if no batch fits or the strategy is refused."""
    try:
        request = _largest(row)
        if request is None:
            return None
        uses, step_s = simulated_uses(request)
    except TraincastError:
        return None
    if step_s > _MOST_STEP_S:
        return None
    described = {name: value for name, value in row.items() if name not in ("number", "batch_share")}
    return described | {
        "global_batch": request.global_batch,
        "precision": request.precision.name,
        "step_s": step_s,
        **use_columns(uses),
    }


def _largest(row: Mapping[str, Any]) -> Request | None:
    """The request with the asked share of the largest batch that fits; ``None`` if not even one sample fits."""
    parsed = request_of({**row, "global_batch": 2**20})
    each = parsed.strategy.dp * parsed.strategy.num_microbatches

    def fits(power: int) -> bool:
        return need_only(for_workers(replace(parsed, global_batch=each * 2**power))).fits

    low, high = -1, _LARGEST_BATCH.bit_length() - 1
    middle = high  # most often the largest fits
    while low < high:  # memory grows with the batch
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
        middle = (low + high + 1) // 2
    if low < 0:
        return None
    return replace(parsed, global_batch=each * max(1, round(2**low * row["batch_share"])))


def simulated_uses(request: Request) -> tuple[dict[str, ResourceUse], float]:
    """Return the uses of a simulated run of ``request``, and the seconds of its step."""
    result = forecast(request)
    return uses_of(forecast_curves(result)), result.report.step_s
