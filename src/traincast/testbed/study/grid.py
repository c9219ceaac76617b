"""The grid of ``traincast testbed study``: models × strategies × networks, and single cells beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from traincast.ask import Ask
from traincast.errors import RequestError, UnknownNameError
from traincast.graph.load import load_model
from traincast.resolve import stated_strategy
from traincast.testbed.request import rate_of

Kind = Literal["emulated", "mixed", "servers", "real", "job"]

DEVICE: Final = "k80"
"""The emulated device: a slow one, so that compute and communication take similar times on these networks."""
NETWORKS: Final = ("200Mbit", "500Mbit", "1Gbit", "2Gbit")
STEPS: Final = 6
JOB_STEPS: Final = 200
_LEAST_SAMPLES: Final = 16
_MOST_SAMPLES: Final = 4096
REAL_STEPS: Final = 40
"""Real compute repeats far worse than emulated compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel:
    """A model of the study: its spec and the samples of a step."""

    spec: str
    global_batch: int
    strategies: tuple[str, ...]


_LLAMA: Final = "llama:layers=4,hidden=256,heads=4,vocab=1024,seq=128"
_PIPELINE: Final = "microbatches=4"
MODELS: Final[dict[str, StudyModel]] = {
    "llama": StudyModel(
        spec=_LLAMA,
        global_batch=512,
        strategies=("dp=2", "dp=4", "dp=2,microbatches=2", "dp=2,zero=3", "dp=4,zero=3"),
    ),
    "llama-pp": StudyModel(
        spec=_LLAMA,
        global_batch=256,
        strategies=(
            f"pp=2,{_PIPELINE},schedule=gpipe",
            f"pp=2,{_PIPELINE},schedule=1f1b",
            f"pp=2,{_PIPELINE},schedule=interleaved,vp=2",
            "pp=4,microbatches=8,schedule=1f1b",
            f"dp=2,pp=2,{_PIPELINE},schedule=1f1b",
        ),
    ),
    "llama-tp": StudyModel(spec=_LLAMA, global_batch=128, strategies=("tp=2", "dp=2,tp=2")),
    "gpt": StudyModel(
        spec="gpt:layers=4,hidden=256,heads=4,vocab=1024,seq=128,tied=false", global_batch=512, strategies=("dp=2",)
    ),
    "resnet": StudyModel(spec="resnet-cifar:layers=56", global_batch=2048, strategies=("dp=2", "dp=4")),
}
"""Every model, with the strategies that it runs on every network. Steps are long enough for the hosts to keep up."""

_QUICK_STRATEGIES: Final = (
    "dp=2",
    "dp=2,zero=3",
    f"pp=2,{_PIPELINE},schedule=1f1b",
    "tp=2",
    f"dp=2,pp=2,{_PIPELINE},schedule=1f1b",
)
QUICK: Final = {"models": ("gpt",), "strategies": _QUICK_STRATEGIES, "networks": ("500Mbit",)}
"""The part of the grid that ``--quick`` runs, without the single cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCell:
    """One run of the study. ``links`` and ``slow`` are rates in text and factors of single ranks."""

    kind: Kind
    model: str
    spec: str
    strategy: str
    global_batch: int
    network: str
    compute: str = DEVICE
    steps: int = STEPS
    links: tuple[tuple[int, str], ...] = ()
    slow: tuple[tuple[int, float], ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks that train, without parameter servers."""
        ask = Ask(self.spec, cluster=DEVICE, strategy=self.strategy, global_batch=self.global_batch)
        return stated_strategy(ask).num_ranks

    @property
    def name(self) -> str:
        """What tables call the cell."""
        parts = [self.model, self.strategy, self.network]
        parts += [f"link {rank}: {rate}" for rank, rate in self.links]
        parts += [f"rank {rank} × {factor:g}" for rank, factor in self.slow]
        if self.kind in ("real", "job"):
            parts.append("real compute" if self.kind == "real" else f"{self.steps} steps")
        return " · ".join(parts)

    @property
    def folder(self) -> str:
        """The name of the cell's folder."""
        return re.sub(r"[^A-Za-z0-9=.]+", "-", f"{self.kind} {self.name}").strip("-")


def _gpt(kind: Kind, strategy: str, network: str = "500Mbit", **more: object) -> StudyCell:
    model = MODELS["gpt"]
    cell = StudyCell(
        kind=kind, model="gpt", spec=model.spec, strategy=strategy, global_batch=model.global_batch, network=network
    )
    return replace(cell, **more)  # type: ignore[arg-type]


def _real(model: str, spec: str, batch: int) -> StudyCell:
    return StudyCell(
        kind="real", model=model, spec=spec, strategy="dp=2", global_batch=batch, network="1Gbit", compute="real",
        steps=REAL_STEPS,
    )  # fmt: skip


SINGLE: Final[tuple[StudyCell, ...]] = (
    _gpt("mixed", "dp=4", slow=((3, 1.5),)),
    _gpt("mixed", "dp=2,zero=3", slow=((1, 2.0),)),
    _gpt("mixed", "dp=4", links=((2, "200Mbit"),)),
    _gpt("mixed", f"pp=2,{_PIPELINE},schedule=1f1b", slow=((0, 1.5),)),
    _gpt("mixed", "dp=2", "1Gbit", slow=((1, 1.5),), links=((1, "200Mbit"),)),
    _gpt("servers", "dp=2,servers=1"),
    _gpt("servers", "dp=2,servers=2", "200Mbit"),
    _gpt("servers", "dp=2,servers=1,async"),
    _gpt("servers", "dp=2,servers=1,async", slow=((1, 1.5),)),
    _real("gpt-real", "gpt:layers=4,hidden=256,heads=4,vocab=1024,seq=128", 8),
    _real("llama-real", "llama:layers=4,hidden=256,heads=4,kv_heads=2,vocab=1024,seq=128", 8),
    _real("resnet-real", "resnet-cifar:layers=20", 32),
    _gpt("job", "dp=2", "1Gbit", steps=JOB_STEPS),
    _gpt("job", f"dp=2,pp=2,{_PIPELINE},schedule=1f1b", "1Gbit", steps=JOB_STEPS),
)
"""Cells beside the grid: unlike workers and links, parameter servers, real compute, and long jobs."""


def cells_of(
    *,
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
    networks: Sequence[str] = (),
    ranks: int | None = None,
    quick: bool = False,
) -> list[StudyCell]:
    """Return the chosen cells: of the grid and, if nothing but ``ranks`` is chosen, the single ones too.

    ``models`` are names of :data:`MODELS` or specs; ``strategies`` replace those of the grid.
    """
    wanted = tuple(models) or (QUICK["models"] if quick else tuple(MODELS))
    rates = tuple(networks) or (QUICK["networks"] if quick else NETWORKS)
    for rate in rates:
        rate_of(rate, "--rates")
    cells = []
    for name in wanted:
        model = _model(name)
        chosen = tuple(strategies) or (QUICK["strategies"] if quick else model.strategies)
        cells += [
            StudyCell(
                kind="emulated", model=name, spec=model.spec, strategy=strategy, global_batch=model.global_batch,
                network=network,
            )
            for network in rates
            for strategy in chosen
        ]  # fmt: skip
    if not (models or strategies or networks or quick):
        cells += SINGLE
    found = [cell for cell in cells if ranks in (None, cell.ranks)]
    if not found:
        raise RequestError("no cell of the study is left: choose other models, strategies, networks or ranks")
    return found


def _batch_of(spec: str) -> int:
    """The samples of a step of a user's model: as much compute as in steps of the study, so that hosts keep up."""

    def flops(model: str) -> float:
        return sum(op.flops * count for op, count in load_model(model, use_cache=True))

    ours = MODELS["gpt"]
    samples = ours.global_batch * flops(ours.spec) / flops(spec)
    return int(min(_MOST_SAMPLES, max(_LEAST_SAMPLES, 2.0 ** round(math.log2(samples)))))


def _model(name: str) -> StudyModel:
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return StudyModel(spec=name, global_batch=_batch_of(name), strategies=MODELS["gpt"].strategies)
    raise UnknownNameError("model of the study", name, MODELS, hint="or give a spec such as gpt:layers=4,hidden=128")
