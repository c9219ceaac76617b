"""The measured runs nearest to a request, and in words how far away they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.evidence.distance import FACTS, RATIOS, distances, terms
from traincast.evidence.runs import Runs, measured_runs
from traincast.evidence.support import support
from traincast.evidence.traits import RunKind, Traits, traits_of
from traincast.strategy import Request

SHOWN: Final = 5
"""Number of neighbours in a report."""
NEAR: Final = 0.5
"""Below this distance a run is near."""
FAR: Final = 1.5
"""From this distance a run is far away."""
_EACH: Final = 2
"""Most neighbours of one source: runs of one publisher share its machine and its habits."""
_LIKE: Final = 1.25
"""Ratios up to this count as the same."""
_SAME_POWER: Final = 1.03

_KINDS: Final[dict[RunKind, str]] = {
    "language": "a language model",
    "experts": "a mixture of experts",
    "images": "a network for images",
    "other": "a model of this kind",
    "tuned": "a model that is partly trained",
}
_USES: Final = {
    "zero=3": ("zero=3", "no zero=3"),
    "tp": ("tp", "no tp"),
    "tp across nodes": ("tp across nodes", "tp within nodes"),
    "pp": ("a pipeline", "no pipeline"),
    "cp": ("cp", "no cp"),
    "ep": ("ep", "no ep"),
    "recompute": ("recomputation", "no recomputation"),
    "offload": ("offloading", "no offloading"),
    "servers": ("parameter servers", "no parameter servers"),
    "several nodes": ("several nodes", "one node"),
}
_NUMBERS: Final = {
    "active_parameters": "the parameters",
    "devices": "the devices",
    "micro batch": "the micro batch",
    "tokens": "the tokens per sample",
    "power_w": "the power",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A measured run near a request: what was run, the seconds of a step, and the zero-shot forecast of it.

    ``distance`` is that of :mod:`traincast.evidence.distance`: below 0.5, little differs. ``differs`` says what the run
    has that the request has not, the largest difference first.
    """

    source: str
    model: str
    device: str
    devices: int
    strategy: str
    precision: str
    runtime: str
    global_batch: int
    distance: float
    measured_s: float
    predicted_s: float
    differs: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The error of the forecast, relative to the measured time."""
        return self.predicted_s / self.measured_s - 1.0


class Evidence(NamedTuple):
    """What measured runs say about a request: the nearest ones, and how far away they are, in plain words."""

    neighbours: tuple[Neighbour, ...]
    words: tuple[str, ...]


def evidence_of(request: Request | Traits, *, runs: Runs | None = None, count: int = SHOWN) -> Evidence:
    """Return the ``count`` nearest of the ``runs``, at most two of one source, and what was not measured."""
    traits = request if isinstance(request, Traits) else traits_of(request)
    runs = measured_runs() if runs is None else runs
    far = distances(traits, runs)
    chosen: list[int] = []
    taken: dict[str, int] = {}
    for number in np.argsort(far, kind="stable").tolist():
        source = str(runs["source"][number])
        taken[source] = taken.get(source, 0) + 1
        if taken[source] <= _EACH:
            chosen.append(number)
        if len(chosen) == count:
            break
    near = runs.of_numbers(chosen)
    found = _terms(traits, near)
    neighbours = tuple(_neighbour(traits, near, n, float(far[i]), found) for n, i in enumerate(chosen))
    return Evidence(neighbours=neighbours, words=_words(traits, runs, neighbours))


def _terms(traits: Traits, runs: Runs) -> dict[str, npt.NDArray[np.float64]]:
    weights = RATIOS | FACTS
    return {name: weights[name] * term for name, term in terms(traits, runs).items()}


def _neighbour(
    traits: Traits, runs: Runs, number: int, far: float, found: dict[str, npt.NDArray[np.float64]]
) -> Neighbour:
    run = runs.run(number)
    order = sorted((name for name in found if found[name][number] > 0.0), key=lambda name: -found[name][number])
    said = [text for name in order if (text := _difference(name, traits, run.traits))]
    return Neighbour(
        source=run.source,
        model=run.traits.model,
        device=run.traits.device,
        devices=run.traits.devices,
        strategy=run.traits.strategy,
        precision=run.traits.precision,
        runtime=run.traits.runtime,
        global_batch=run.traits.global_batch,
        distance=round(far, 3),
        measured_s=run.measured_s,
        predicted_s=run.predicted_s,
        differs=tuple(said),
    )


def _difference(name: str, here: Traits, there: Traits) -> str:
    """Return what a run has that the request has not, by the name of a term; "" if it is said by another term."""
    if name in _NUMBERS:
        if name == "micro batch":
            ratio = there.micro_batch * max(there.tokens, 1) / (here.micro_batch * max(here.tokens, 1))
        else:
            ratio = getattr(there, name) / getattr(here, name)
        return f"{times(ratio)} {_NUMBERS[name]}" if max(ratio, 1 / ratio) > _LIKE else ""
    if name in _USES:
        uses = {
            "zero=3": there.zero == 3,
            "tp across nodes": there.tensor_nodes > 1,
            "recompute": there.recompute != "none",
            "offload": there.offload != "",
            "servers": there.servers > 0,
            "several nodes": there.nodes > 1,
        }
        return _USES[name][0 if uses.get(name, getattr(there, name, 1) != 1) else 1]
    return {
        "kind": _KINDS[there.kind],
        "device": f"{there.device} instead of {here.device}",
        "architecture": "",  # the device says it
        "runtime": f"{there.runtime} instead of {here.runtime}",
        "products": f"{there.products} products instead of {here.products}",
    }[name]


def times(ratio: float) -> str:
    """Return a ratio in words: twice, half, 3.5 times, a quarter of.

    >>> times(2.0), times(0.5), times(3.5), times(0.1)
    ('twice', 'half', '3.5 times', 'a tenth of')
    """
    if ratio < 1.0:
        parts = {2: "half", 3: "a third of", 4: "a quarter of", 5: "a fifth of", 8: "an eighth of", 10: "a tenth of"}
        whole = round(1.0 / ratio)
        return parts.get(whole, f"1/{whole} of") if abs(whole * ratio - 1.0) < 0.1 else f"{ratio:.2g} times"
    if abs(ratio - 2.0) < 0.05:
        return "twice"
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times"


def _words(traits: Traits, runs: Runs, neighbours: tuple[Neighbour, ...]) -> tuple[str, ...]:
    """Return what no measured run has done: one sentence each, size first, then machine and techniques."""
    said = _beyond(traits, runs)
    on_device = runs["device"] == traits.device
    if not on_device.any():
        alike = int((runs["architecture"] == traits.architecture).sum())
        said.append(
            f"no measured run on {traits.device}"
            + (f"; {alike} on other {traits.architecture} devices" if alike else f", nor on any {traits.architecture}")
        )
    else:
        powers = sorted(set(runs["power_w"][on_device].tolist()))
        if all(max(watts / traits.power_w, traits.power_w / watts) > _SAME_POWER for watts in powers):
            shown = " and ".join(f"{watts:,.0f} W" for watts in powers)
            said.append(f"{traits.device} was measured only at {shown}, not at {traits.power_w:,.0f} W")
        if not (runs["products"][on_device] == traits.products).any():
            said.append(f"no measured run with {traits.products} products on {traits.device}")
    if not (runs["runtime"] == traits.runtime).any():
        said.append(f"no measured run with {traits.runtime}")
    said += [one.words for one in support(traits, runs=runs) if not one.supported]
    return (_summary(neighbours), *said) if neighbours else ("no measured run is known", *said)


def _beyond(traits: Traits, runs: Runs) -> list[str]:
    """Return the numbers in which a request lies beyond every measured run of its kind."""
    alike = runs["kind"] == traits.kind
    if not alike.any():
        return [f"no measured run of {_KINDS[traits.kind]}"]
    said = []
    for name, what in (("nodes", "nodes"), ("parameters", "parameters"), ("tokens", "tokens per sample")):
        most, here = float(runs[name][alike].max()), float(getattr(traits, name))
        if most > 0.0 and here > _LIKE * most:
            said.append(f"{times(here / most)} the {what} of any measured run of {_KINDS[traits.kind]}")
    return said


def _summary(neighbours: tuple[Neighbour, ...]) -> str:
    """Return one sentence about the nearest runs: how near, and how wrong their forecasts were."""
    errors = sorted(one.error for one in neighbours)
    first = neighbours[0]
    near = "near" if first.distance < NEAR else "not far" if first.distance < FAR else "far away"
    but = f" ({', '.join(first.differs[:3])})" if first.differs else ", with the same settings"
    span = " to ".join(f"{100 * error:+.0f} %" for error in dict.fromkeys((errors[0], errors[-1])))
    return f"the nearest measured run is {near}{but}; forecasts of the {len(errors)} nearest are off by {span}"
