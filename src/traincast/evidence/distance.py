"""How far a measured run is from a request: a sum of a few terms, each with a weight that anyone can read.

A ratio r of two numbers counts log₂ r times its weight, at most :data:`FARTHEST` doublings; a fact that differs counts
its weight once. So 1 is another kind of model, or five doublings of the devices; tensor parallelism across nodes alone
is 3. Weights were chosen with guide sources alone, and follow how far the errors of two forecasts lie apart if one
fact differs. ``python -m benchmarks.evidence DATA --distance`` shows how well they do.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.evidence.runs import PublishedRun, Runs, measured_runs
from traincast.evidence.traits import Traits, traits_of
from traincast.strategy import Request

Floats = npt.NDArray[np.float64]

FARTHEST: Final = 10.0
"""Doublings beyond which a ratio no longer adds to a distance."""
RATIOS: Final[dict[str, float]] = {
    "active_parameters": 0.2,
    "devices": 0.2,
    "micro batch": 0.3,
    "tokens": 0.1,
    "power_w": 1.0,
}
"""Weight of one doubling of each number; ``micro batch`` counts tokens, or samples of models without them."""
FACTS: Final[dict[str, float]] = {
    "kind": 1.0,
    "architecture": 0.25,
    "device": 0.25,
    "runtime": 0.25,
    "products": 0.25,
    "zero=3": 0.25,
    "tp": 0.1,
    "tp across nodes": 3.0,
    "pp": 0.25,
    "cp": 0.25,
    "ep": 0.25,
    "recompute": 0.1,
    "offload": 1.5,
    "servers": 2.0,
    "several nodes": 0.1,
}
"""Weight of each fact that differs: whether a technique is used, or which device, framework or format."""


def terms(traits: Traits, runs: Runs) -> dict[str, Floats]:
    """Return the terms of the distance of each run, without their weights, under the names of the weights."""

    def doublings(here: float, there: Floats) -> Floats:
        found: Floats = np.minimum(np.abs(np.log2(np.maximum(there, 1e-9) / max(here, 1e-9))), FARTHEST)
        return found

    def differs(here: object, there: npt.NDArray[np.generic]) -> Floats:
        return np.asarray(there != here, dtype=np.float64)

    batch = runs["micro_batch"] * np.maximum(runs["tokens"], 1)
    sequences = (runs["tokens"] > 0) & (traits.tokens > 0)
    return {
        "active_parameters": doublings(traits.active_parameters, runs["active_parameters"]),
        "devices": doublings(traits.devices, runs["devices"]),
        "micro batch": doublings(traits.micro_batch * max(traits.tokens, 1), batch),
        "tokens": np.where(sequences, doublings(max(traits.tokens, 1), np.maximum(runs["tokens"], 1)), 0.0),
        "power_w": np.where(runs["device"] == traits.device, doublings(traits.power_w, runs["power_w"]), 0.0),
        "kind": differs(traits.kind, runs["kind"]),
        "architecture": differs(traits.architecture, runs["architecture"]),
        "device": differs(traits.device, runs["device"]),
        "runtime": differs(traits.runtime, runs["runtime"]),
        "products": differs(traits.products, runs["products"]),
        "zero=3": differs(traits.zero == 3, runs["zero"] == 3),
        "tp": differs(traits.tp > 1, runs["tp"] > 1),
        "tp across nodes": differs(traits.tensor_nodes > 1, runs["tensor_nodes"] > 1),
        "pp": differs(traits.pp > 1, runs["pp"] > 1),
        "cp": differs(traits.cp > 1, runs["cp"] > 1),
        "ep": differs(traits.ep > 1, runs["ep"] > 1),
        "recompute": differs(traits.recompute != "none", runs["recompute"] != "none"),
        "offload": differs(traits.offload != "", runs["offload"] != ""),
        "servers": differs(traits.servers > 0, runs["servers"] > 0),
        "several nodes": differs(traits.nodes > 1, runs["nodes"] > 1),
    }


def distances(request: Request | Traits, runs: Runs | None = None) -> Floats:
    """Return the distance of each run, of the shipped index unless others are given, from ``request``."""
    traits = request if isinstance(request, Traits) else traits_of(request)
    runs = measured_runs() if runs is None else runs
    weights = RATIOS | FACTS
    return sum((weights[name] * term for name, term in terms(traits, runs).items()), np.zeros(len(runs)))


def distance(request: Request | Traits, run: PublishedRun) -> float:
    """Return the distance of one run from ``request``."""
    return float(distances(request, Runs.of([run]))[0])
