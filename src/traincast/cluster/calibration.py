"""The parameters of a cluster that calibration fits to measured runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from traincast.schema import Words

Factor: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0, description="seconds")]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
LogOdds: TypeAlias = Annotated[float, Meta(ge=-1e6, le=1e6)]
Nodes: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]

FACTORS: Final = (
    "gemm", "narrow_gemm", "attention", "memory", "grouped", "conv", "half_conv",
    "intra", "inter", "send",
    "kernels", "blocks", "collectives", "handshakes", "waits",
)  # fmt: skip
"""Parameters that multiply times. All others are added to them."""
FEATURES: Final = (
    "nodes", "tensor ranks", "stages", "replicas", "microbatches", "tokens of a microbatch", "work of a device",
    "exposed communication", "bubble", "host", "products",
)  # fmt: skip
"""What a correction depends on: counts as logarithms of base 2, shares of the simulated step in tenths.

The last is the share of matrix products in the time of all operators.
"""
MOST_LIKELY: Final = 0.7
"""The probability from which a step is forecast in the slow mode; above 0.5, because a false alarm costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A slow mode of some runs that their configuration does not explain.

    In this mode every message between stages takes ``seconds`` longer, and hosts wait for one another at every
    collective. Its log-odds are ``base``, plus ``per_node`` for every node beyond the first; with a pipeline, also plus
    ``pipeline``, and plus ``per_tensor_node`` for every node beyond the first that a tensor-parallel group spans.
    """

    seconds: Seconds
    base: LogOdds
    per_node: LogOdds = 0.0
    pipeline: LogOdds = 0.0
    per_tensor_node: LogOdds = 0.0

    def probability(self, *, nodes: int, tensor_nodes: int, stages: int) -> float:
        """The probability that a run is in the slow mode."""
        odds = self.base + self.per_node * (nodes - 1)
        if stages > 1:
            odds += self.pipeline + self.per_tensor_node * (tensor_nodes - 1)
        return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, odds))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A smooth factor on the simulated step, fitted to its remaining errors; it tends to 1 far from its points.

    The logarithm of the factor at x is Σ weights · exp(−|x − points|²/2), with x and ``points`` in units of ``scales``.
    The points are the measured runs.
    """

    points: tuple[tuple[Annotated[float, Meta(ge=-1e3, le=1e3)], ...], ...]
    weights: tuple[Annotated[float, Meta(ge=-10.0, le=10.0)], ...]
    scales: tuple[Annotated[float, Meta(ge=1e-3, le=1e3)], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenModel:
    """A model that was measured: its steps in ``precision`` take ``factor`` times what the parameters say.

    ``runs`` runs of it were measured. ``model`` is the name of its graph. ``doubt`` is that of :class:`Few` for it.
    """

    model: Annotated[str, Meta(min_length=1, max_length=500)]
    precision: Annotated[str, Meta(min_length=1, max_length=100)]
    factor: Factor
    runs: Annotated[int, Meta(ge=1, le=10**9)]
    doubt: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """What a handful of runs says, too few to fit parameters to: every step takes ``offset`` times what these say.

    ``share`` is how much such offsets count beside the parameters: 1 with a few runs, less with more. The interval of
    an uncalibrated cluster counts with the same share, narrowed to the share ``doubt`` of its width (as logarithms),
    which the runs leave for models that were not measured.
    """

    share: Share
    offset: Factor = 1.0
    doubt: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Parameters fitted to ``runs`` measured runs under ``runtimes``, on ``nodes`` (fewest, most) nodes.

    ``models`` are the kinds of models that ran (:mod:`traincast.strategy.model_kind`); empty: it serves all.

    Factors multiply the time of matrix products (``gemm``; ``narrow_gemm`` in fp8 and below; ``grouped`` for experts),
    ``attention``, memory-bound operators (``memory``), convolutions (``conv``; ``half_conv`` in 16 bits, whose kernels
    differ), collectives within and between nodes (``intra``, ``inter``), messages between stages (``send``), and the
    host's work for operators, blocks, collectives, handshakes and waits (see :class:`traincast.work.Launch`).
    ``intra_latency_s`` or ``inter_latency_s`` is added to a collective for every hop of its messages.
    ``interference`` multiplies the device's. A step takes the share ``jitter`` longer for every doubling of nodes, and
    ``step_s`` longer in any case. ``seen`` has models whose steps differ from all this by a factor of their own.
    ``memory_share`` is real memory over forecast memory.

    In 90 % of cases like the measured ones, a run takes between ``low`` and ``high`` times its forecast. The interval
    widens with the distance from measured runs, up to ``unknown``, the standard deviation of the logarithm there.
    With a handful of runs, ``few`` has what they say of all steps, and how much of an uncalibrated interval is added.
    """

    gemm: Factor = 1.0
    narrow_gemm: Factor = 1.0
    attention: Factor = 1.0
    memory: Factor = 1.0
    grouped: Factor = 1.0
    conv: Factor = 1.0
    half_conv: Factor = 1.0
    intra: Factor = 1.0
    inter: Factor = 1.0
    send: Factor = 1.0
    kernels: Factor = 1.0
    blocks: Factor = 1.0
    collectives: Factor = 1.0
    handshakes: Factor = 1.0
    waits: Factor = 1.0
    interference: Annotated[float, Meta(ge=0.0, le=1e3)] = 1.0
    intra_latency_s: Seconds = 0.0
    inter_latency_s: Seconds = 0.0
    jitter: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.0
    step_s: Annotated[float, Meta(ge=0.0, le=1e4, description="seconds")] = 0.0
    memory_share: Factor = 1.0
    low: Factor = 0.7
    high: Factor = 1.6
    unknown: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.0
    runtimes: Words = ()
    models: Words = ()
    nodes: tuple[Nodes, Nodes] = (1, 1)
    runs: Annotated[int, Meta(ge=0, le=10**9)] = 0
    stall: Stall | None = None
    correction: Correction | None = None
    seen: tuple[SeenModel, ...] = ()
    few: Few | None = None

    def factor_of(self, model: str, precision: str) -> float:
        """Returns the factor on steps of a model in ``precision``: the cluster's, and its own if it was measured."""
        shared = self.few.offset if self.few else 1.0
        return shared * next((s.factor for s in self.seen if (s.model, s.precision) == (model, precision)), 1.0)

    def doubt_of(self, model: str, precision: str) -> float:
        """Returns the share of an uncalibrated interval that a handful of runs leaves for a model; 0 with many runs."""
        if self.few is None:
            return 0.0
        return next((s.doubt for s in self.seen if (s.model, s.precision) == (model, precision)), self.few.doubt)

    def step(self, simulated_s: float, *, nodes: int) -> float:
        """Calibrated seconds of a step that takes ``simulated_s`` in the simulation."""
        return simulated_s * (1.0 + self.jitter * math.log2(nodes)) + self.step_s


NUMBERS: Final = tuple(f.name for f in fields(Calibration) if isinstance(f.default, float))
"""Fields that are plain numbers."""
