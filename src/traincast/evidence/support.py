"""Which techniques of a strategy were used by measured runs like this one.

A run is near if its parameters and its devices are within a factor of :data:`NEAR`, if its devices are of the same
vendor, and if both models read images or neither does. A technique is supported by a near run that used it at half the
size or more: ZeRO-3 over 512 replicas by a run over 256, context parallelism that leaves 1,024 tokens to a rank by one
that left 2,048.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.evidence.runs import Runs, measured_runs
from traincast.evidence.traits import Traits, traits_of
from traincast.strategy import Request

NEAR: Final = 8.0
"""Greatest ratio of parameters, and of devices, between two runs that are near."""
ENOUGH: Final = 2.0
"""Greatest ratio between the size of a technique in a request and in a run that supports it."""

Get: TypeAlias = Callable[[str], Any]
"""Returns a trait by name: of one request, or of all runs as a column."""


class Technique(NamedTuple):
    """A part of a strategy that measured runs may lack.

    ``used`` says whether a run uses it. ``size`` grows with how far it is taken; the sentences say ``at`` which size.
    """

    used: Callable[[Get], Any]
    size: Callable[[Get], Any] | None = None
    at: Callable[[float], str] = "{:g}".format


def _at(words: str) -> Callable[[float], str]:
    return words.format


TECHNIQUES: Final[dict[str, Technique]] = {
    "tp": Technique(used=lambda get: get("tp") > 1, size=lambda get: get("tp"), at=_at("groups of {:,.0f}")),
    "tp across nodes": Technique(
        used=lambda get: get("tensor_nodes") > 1,
        size=lambda get: get("tensor_nodes"),
        at=_at("groups of {:,.0f} nodes"),
    ),
    "sequence_parallel": Technique(used=lambda get: get("sequence_parallel") > 0),
    "pp": Technique(used=lambda get: get("pp") > 1, size=lambda get: get("pp"), at=_at("{:,.0f} stages")),
    "virtual_stages": Technique(
        used=lambda get: get("virtual_stages") > 1, size=lambda get: get("virtual_stages"), at=_at("{:,.0f} per stage")
    ),
    "cp": Technique(
        used=lambda get: get("cp") > 1,
        size=lambda get: get("cp") / np.maximum(get("tokens"), 1),
        at=lambda size: f"{1 / size:,.0f} tokens per rank",
    ),
    "ep": Technique(used=lambda get: get("ep") > 1, size=lambda get: get("ep"), at=_at("{:,.0f} ranks")),
    "zero=1 or 2": Technique(
        used=lambda get: (get("zero") == 1) | (get("zero") == 2),
        size=lambda get: get("sharded"),
        at=_at("{:,.0f} replicas"),
    ),
    "zero=3": Technique(used=lambda get: get("zero") == 3, size=lambda get: get("sharded"), at=_at("{:,.0f} replicas")),
    "recompute": Technique(used=lambda get: get("recompute") != "none"),
    "offload=optimizer": Technique(used=lambda get: _holds(get("offload"), "optimizer")),
    "offload=activations": Technique(used=lambda get: _holds(get("offload"), "activations")),
    "servers": Technique(used=lambda get: get("servers") > 0),
}
"""The techniques that are looked for in measured runs, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What measured runs say about one technique of a request.

    ``runs`` counts the near runs that used it at half its size or more, ``sources`` who published them. ``words`` says
    what was measured instead; "" if the technique is supported.
    """

    technique: str
    runs: int
    sources: int
    words: str = ""

    @property
    def supported(self) -> bool:
        """Whether any near run used the technique at half its size or more."""
        return self.runs > 0


def support(request: Request | Traits, *, runs: Runs | None = None) -> tuple[Support, ...]:
    """Return what measured runs say about each technique that ``request`` uses, in the order of :data:`TECHNIQUES`.

    ``runs`` are those of the shipped index unless others are given. One call takes less than a millisecond once the
    index is loaded; give :class:`Traits` to ask about many strategies of one model and cluster.
    """
    traits = request if isinstance(request, Traits) else traits_of(request)
    runs = measured_runs() if runs is None else runs
    near = near_runs(traits, runs)
    return tuple(_one(name, each, traits, runs, near) for name, each in TECHNIQUES.items() if each.used(_get(traits)))


def _get(traits: Traits) -> Get:
    return lambda name: getattr(traits, name)


def near_runs(traits: Traits, runs: Runs) -> npt.NDArray[np.bool_]:
    """Return which runs are near: of a like kind and the same vendor, within a factor in parameters and devices."""
    found: npt.NDArray[np.bool_] = (runs["kind"] == "images") == (traits.kind == "images")
    found = found & (runs["vendor"] == traits.vendor)
    for name in ("parameters", "devices"):
        ratio = np.log(runs[name] / getattr(traits, name))
        found = found & (np.abs(ratio) <= np.log(NEAR) + 1e-9)
    return found


def _one(name: str, technique: Technique, traits: Traits, runs: Runs, near: npt.NDArray[np.bool_]) -> Support:
    used = np.asarray(technique.used(runs.__getitem__), dtype=bool)
    size = None if technique.size is None else float(technique.size(_get(traits)))
    sizes = np.ones(len(runs)) if technique.size is None else technique.size(runs.__getitem__)
    alike = used & near & (sizes * ENOUGH >= (size or 1.0) * (1 - 1e-9))
    if alike.any():
        return Support(technique=name, runs=int(alike.sum()), sources=len(set(runs["source"][alike].tolist())))
    if not used.any():
        words = f"{name}: no measured run has used it"
    elif not (used & near).any():
        words = f"{name}: no measured run near this one, within a factor of {NEAR:g} in parameters and devices"
    else:
        assert size is not None
        most = float(sizes[used & near].max())
        words = f"{name}: {technique.at(size)}; measured runs near this one reach {technique.at(most)}"
    return Support(technique=name, runs=0, sources=0, words=words)


def _holds(values: Any, name: str) -> Any:
    """Return whether a text, or each text of a column, holds ``name``."""
    return name in values if isinstance(values, str) else np.char.find(values.astype(str), name) >= 0
