"""Which cheap measurements lower the doubt about a decision most: what to measure next.

The decision is which strategy to run, or how long a given strategy takes. For every measurement, the worlds that a
forecast allows are conditioned on what it would show (:mod:`traincast.searching.worlds`), whatever it shows; the doubt
that is left, and the price of the measurement, tell which one to make.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from traincast.ask import Ask, Live, Option, Seed, Training, declared, option_of, verb
from traincast.brief import Brief, BriefTable
from traincast.engines import Engine
from traincast.errors import TraincastError
from traincast.forecast import Forecast, forecast
from traincast.report.job import price_per_s
from traincast.report.outlook import CARRIED_OVER, COMPOSED
from traincast.resolve import cost_model_of, resolve
from traincast.searching.ask import SearchAsk
from traincast.searching.doubts import Doubts, lacking
from traincast.searching.page import cluster_word
from traincast.searching.search import search
from traincast.searching.sureness import REPEATS, spreads
from traincast.searching.worlds import DrawnStep, Effects, Seen, Worlds, step_of
from traincast.strategy import Request, Strategy
from traincast.units import format_money

About: TypeAlias = Literal["choice", "time"]
Kind: TypeAlias = Literal["operators", "collectives", "events", "run"]

_OPERATORS: Final = ("gemm", "narrow_gemm", "attention", "memory", "grouped", "conv", "half_conv")
_LINKS: Final = ("intra", "inter", "send")
_OPERATOR_NOISE: Final = 0.06
"""Operators timed alone against the same operators in a step: two releases of a framework differ by 3 to 6 %."""
_LINK_NOISE: Final = 0.11
"""Collectives by a curve through ten points of their own: the error on other sizes."""
_NINETY: Final = 2.0 * 1.645
_PROFILE_S: Final = 600.0
_EVENTS_S: Final = 900.0
_START_S: Final = 300.0
"""Seconds that a node is paid for: to time operators or collectives, to time events, and to start a run."""
_STEPS: Final = 5
_WARM: Final = 3
"""Steps of a run that count, and steps before them."""
_CONTENDERS: Final = 12
_RUNS: Final = 3
"""Strategies that a choice is made among, and of how many of them runs are considered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAsk(Training):
    """What ``next`` is asked: a training, and its strategy if that is chosen already."""

    strategy: Annotated[
        str | Strategy | None,
        Option(
            "How to distribute the work over the devices. The doubt is then about its step time; if omitted, about "
            "which strategy to run.",
            "dp=8,tp=4,…",
        ),
    ] = None
    constraint: Annotated[str, option_of(SearchAsk, "constraint")] = ""
    searcher: Annotated[str, option_of(SearchAsk, "searcher")] = "auto"
    seed: Annotated[Seed, Option("Seed of the random numbers. Annealing and the draws of worlds use it.", "N")] = 0
    engine: Annotated[Engine | None, Live(), option_of(SearchAsk, "engine")] = None
    progress: Annotated[Callable[[int, int], None] | None, Live(), option_of(SearchAsk, "progress")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measurement that could be made, and what it would leave of the doubt.

    ``cost`` is its price in US dollars, ``seconds`` how long it takes on ``num_nodes`` nodes. ``doubt_before`` and
    ``doubt_after`` are the doubt about the decision. ``commands`` make the measurement, and use it.
    """

    kind: Kind
    what: str
    cost: float
    num_nodes: int
    seconds: float
    doubt_before: float
    doubt_after: float
    commands: tuple[str, ...] = ()

    @property
    def lowered(self) -> float:
        """The part of the doubt that the measurement removes."""
        return self.doubt_before - self.doubt_after

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "kind": self.kind,
            "what": self.what,
            "cost": self.cost,
            "num_nodes": self.num_nodes,
            "seconds": self.seconds,
            "doubt_before": self.doubt_before,
            "doubt_after": self.doubt_after,
            "commands": list(self.commands),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(Brief):
    """The measurements worth making, the one that lowers the doubt most per dollar first.

    ``about`` is the decision. If it is the ``choice`` of a strategy, the doubt is the expected regret: how much longer
    the chosen strategy takes than the best one, on average over worlds. If it is the ``time`` of ``strategy``, the
    doubt is the standard deviation of the logarithm of its step.
    """

    model: str
    cluster: str
    strategy: str
    step_s: float
    low_s: float
    high_s: float
    about: About
    doubt: float
    compared: int
    measurements: tuple[Measurement, ...]

    def brief(self) -> BriefTable:
        """Return the measurements."""
        rows = [
            (m.what, format_money(m.cost), f"{m.doubt_before:.1%}", f"{m.doubt_after:.1%}") for m in self.measurements
        ]
        said = f"{self.model} on {self.cluster}: what to measure next about the {self.about}"
        return BriefTable(said, rows, ("measurement", "cost", "doubt", "doubt after"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "strategy": self.strategy,
            "step_s": self.step_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "about": self.about,
            "doubt": self.doubt,
            "compared": self.compared,
            "measurements": [each.to_dict() for each in self.measurements],
        }


@verb(NextAsk)
def next_measurements(ask: NextAsk) -> Advice:
    """Return the measurements that lower the doubt about a decision most per dollar.

    With a ``strategy``, the decision is how long it takes. Without one, a search finds the best strategies, and the
    decision is which of them to run. Raises :class:`traincast.errors.StrategyError` if no strategy is left.
    """
    made = [_given(ask)] if ask.strategy is not None else _found(ask)
    about: About = "time" if len(made) == 1 else "choice"
    doubts = Doubts(made[0].request)
    steps = [step_of(each, lacking(doubts.of(each.request.strategy))) for each in made]
    worlds = Worlds(steps, seed=ask.seed)
    before = _doubt(worlds, about)
    found = [
        replace(idea.measurement, doubt_before=before, doubt_after=min(before, _doubt(worlds, about, idea.seen)))
        for idea in _ideas(made, steps, ask)
    ]
    first = made[0]
    return Advice(
        model=first.request.graph.name,
        cluster=first.report.cluster,
        strategy=str(first.request.strategy),
        step_s=first.report.step_s,
        low_s=first.report.low_s,
        high_s=first.report.high_s,
        about=about,
        doubt=before,
        compared=len(made),
        measurements=tuple(sorted(found, key=lambda each: (-each.lowered / _price(each), each.cost, each.what))),
    )


def _price(measurement: Measurement) -> float:
    """Return the cost, or the node-seconds if nobody states a price."""
    return measurement.cost or measurement.num_nodes * measurement.seconds or 1.0


def _doubt(worlds: Worlds, about: About, seen: Sequence[Seen] = ()) -> float:
    return worlds.spread(0, seen) if about == "time" else worlds.regret(seen)


def _given(ask: NextAsk) -> Forecast:
    """Return the forecast of the strategy that is asked about."""
    found = resolve(Ask(**_training(ask), strategy=ask.strategy))
    return forecast(found.request, cost_model=cost_model_of(ask))


def _found(ask: NextAsk) -> list[Forecast]:
    """Return forecasts of the strategies that a search cannot tell apart from the best, the best first."""
    answer = search(
        SearchAsk(
            **_training(ask),
            constraint=ask.constraint,
            searcher=ask.searcher,
            seed=ask.seed,
            engine=ask.engine,
            progress=ask.progress,
            top=_CONTENDERS,
        )
    )
    return [forecast(c.request, cost_model=cost_model_of(ask)) for c in answer.candidates]


def _training(ask: NextAsk) -> dict[str, Any]:
    return {one.name: getattr(ask, one.name) for one in declared(Training)}


@dataclass(frozen=True, slots=True)
class _Idea:
    """A measurement whose doubt is not known yet, and the figures that it would show."""

    measurement: Measurement
    seen: tuple[Seen, ...]


def _ideas(made: Sequence[Forecast], steps: Sequence[DrawnStep], ask: NextAsk) -> Iterator[_Idea]:
    """Yield what could be measured: operators, collectives, events, and runs of the best strategies."""
    request = made[0].request
    nodes = min(2, request.cluster.num_nodes)
    every = {name: 1.0 for step in steps for name in step.effects}
    words = _Words(request, ask)
    yield _Idea(
        _measurement(
            "operators",
            "table of its operators on one device",
            request,
            nodes=1,
            seconds=_PROFILE_S,
            commands=words.operators(),
        ),
        tuple(Seen(effects={n: 1.0}, noise=_OPERATOR_NOISE / _one(n)) for n in every if n[0] in _OPERATORS),
    )
    if request.cluster.num_devices > 1:
        on = "two nodes" if nodes > 1 else "one node"
        yield _Idea(
            _measurement(
                "collectives",
                f"collectives on {on}",
                request,
                nodes=nodes,
                seconds=_PROFILE_S,
                commands=words.collectives(nodes),
            ),
            tuple(Seen(effects={n: 1.0}, noise=_LINK_NOISE / _one(n)) for n in every if n[0] in _LINKS),
        )
    for each, step in list(zip(made, steps, strict=True))[: 1 if len(made) == 1 else _RUNS]:
        carried = each.request.cluster.num_nodes > nodes
        low, high = CARRIED_OVER if carried else COMPOSED
        on = "two nodes" if nodes > 1 else "one node"
        yield _Idea(
            _measurement(
                "events",
                f"events of {each.request.strategy} on {on}",
                each.request,
                nodes=nodes,
                seconds=_EVENTS_S,
                commands=words.events(each.request, nodes),
            ),
            (Seen(effects=_without(step.effects, "scaling", "repeats"), noise=math.log(high / low) / _NINETY),),
        )
        yield from _runs(each, words)


def _one(name: tuple[str, ...]) -> float:
    """Return the spread of the logarithm of a factor: what one standard deviation of it is."""
    return max(spreads().get(name[0], 1.0), 1e-3)


def _without(effects: Effects, *kinds: str) -> Effects:
    """Return the effects that a measurement shows: single works do not show scale, and no run repeats itself."""
    return {name: effect for name, effect in effects.items() if name[0] not in kinds}


def _runs(made: Forecast, words: _Words) -> Iterator[_Idea]:
    """Yield runs of a few steps of a strategy: on the fewest nodes on which it fits, on a few more, and on all."""
    request = made.request
    total = request.cluster.num_nodes
    sizes = [n for n in range(1, total + 1) if total % n == 0] if not request.cluster.parts else [total]
    fitting = [small for n in sizes if (small := _shrunk(made, n)) is not None]
    chosen = dict.fromkeys((0, len(fitting) // 2, len(fitting) - 1)) if fitting else ()
    for each in (fitting[number] for number in chosen):
        nodes, s = each.request.cluster.num_nodes, each.request.strategy
        effects = step_of(each, lacking(Doubts(each.request).of(s))).effects
        seconds = _START_S + (_STEPS + _WARM) * each.report.step_s
        what = f"{_STEPS} steps of {s} on {nodes} node{'s' if nodes > 1 else ''}"
        yield _Idea(
            _measurement("run", what, each.request, nodes=nodes, seconds=seconds, commands=words.run(each.request)),
            (Seen(effects=_without(effects, "repeats"), noise=REPEATS),),
        )


def _shrunk(made: Forecast, nodes: int) -> Forecast | None:
    """Return the forecast of the same strategy on fewer nodes, with fewer replicas; ``None`` if it does not fit."""
    request = made.request
    total = request.cluster.num_nodes
    if nodes == total:
        return made
    dp, batch = request.strategy.dp * nodes, request.global_batch * nodes
    if dp % total or batch % total:
        return None
    small = replace(
        request,
        cluster=replace(request.cluster, num_nodes=nodes),
        global_batch=batch // total,
        strategy=replace(request.strategy, dp=dp // total),
    )
    try:
        found = forecast(small, cost_model=made.cost_model)
    except TraincastError:
        return None
    return found if found.report.fits else None


def _measurement(
    kind: Kind, what: str, request: Request, *, nodes: int, seconds: float, commands: Sequence[str]
) -> Measurement:
    cluster = request.cluster
    rate = price_per_s(cluster) * nodes / cluster.num_nodes
    return Measurement(
        kind=kind,
        what=what,
        cost=rate * seconds,
        num_nodes=nodes,
        seconds=seconds,
        doubt_before=0.0,
        doubt_after=0.0,
        commands=tuple(commands),
    )


class _Words:
    """The commands that make each measurement and use it."""

    def __init__(self, request: Request, ask: NextAsk) -> None:
        self._request = request
        self._model = ask.model if isinstance(ask.model, str) else request.graph.name
        self._cluster = ask.cluster if isinstance(ask.cluster, str) else request.cluster.name

    def operators(self) -> list[str]:
        """Return the commands that time the operators of the model."""
        request = self._request
        micro = max(1, round(request.strategy.micro_batch(request.global_batch)))
        tokens = ["--seq", str(request.graph.tokens_per_sample)] if request.graph.tokens_per_sample > 1 else []
        name = request.precision.name if request.precision.name in ("fp32", "bf16", "fp16") else "bf16"
        words = ["--from", self._model, "--batch", str(micro), *tokens, "--precision", name, "--device", "cuda"]
        return [
            _line("profile", "operators", *words, "-o", "operators.parquet"),
            _line("fit", "operators", "operators.parquet", "-o", "mine"),
            self._predict(request, "--bundle", "mine"),
        ]

    def collectives(self, nodes: int) -> list[str]:
        """Return the commands that time collectives."""
        return [
            _torchrun(self._request, nodes, "profile", "collectives", "--backend", "nccl", "-o", "collectives.parquet"),
            _line("fit", "collectives", "collectives.parquet", "-o", "mine"),
            self._predict(self._request, "--bundle", "mine"),
        ]

    def events(self, request: Request, nodes: int) -> list[str]:
        """Return the commands that time the works of a strategy."""
        words = [*self._asked(request), "--precision", request.precision.name, "--runtime", request.runtime.name]
        return [
            _torchrun(request, nodes, "profile", "events", *words, "-o", "events"),
            self._predict(request, "--events", "events"),
        ]

    def run(self, request: Request) -> list[str]:
        """Return the commands that forecast a run, and that learn from its time."""
        return [
            self._predict(request),
            _line("calibrate", "runs.csv", "--cluster", request.cluster.name, "-o", "mine.toml"),
        ]

    def _predict(self, request: Request, *more: str) -> str:
        return _line("predict", *self._asked(request), "--precision", request.precision.name, *more)

    def _asked(self, request: Request) -> list[str]:
        place = cluster_word(request.cluster) or self._cluster
        return [
            self._model,
            "--cluster",
            place,
            "--global-batch",
            str(request.global_batch),
            "--strategy",
            request.strategy.complete_text,
        ]


def _line(*words: str) -> str:
    return shlex.join(["traincast", *words])


def _torchrun(request: Request, nodes: int, *words: str) -> str:
    each = str(request.cluster.devices_per_node)
    return shlex.join(["torchrun", "--nnodes", str(nodes), "--nproc-per-node", each, "-m", "traincast", *words])
