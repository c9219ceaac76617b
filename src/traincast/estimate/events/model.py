"""The cost model of measured events: looks up what was measured, and asks another cost model for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from traincast.cluster import Cluster
from traincast.cluster.hardware import PROCESSOR
from traincast.errors import FileFormatError, RequestError
from traincast.estimate.events.file import REAL, EventsCard, Row, read_card, read_rows
from traincast.estimate.events.keys import name_of, operator_key, text_of, update_key
from traincast.estimate.events.laws import GLOO_LAWS, LAWS, MeasuredCurve
from traincast.estimate.events.near import Anchor, NearbyOperators, anchor_of
from traincast.estimate.protocol import SOURCES, CostModel, Estimates
from traincast.graph import DType, Operator, OpKind
from traincast.graph.vocabulary import PRODUCTS
from traincast.work import Collective, Launch, Transfer, Work

MEASURED: Final = SOURCES.index("measured")
CARRIED: Final = SOURCES.index("carried")
PURPOSES: Final = ("kernels", "blocks", "collectives", "sends", "waits")
"""What a host's launches are for; each measured one has a row of kind ``launch``."""
BESIDE_TRAFFIC: Final = text_of(["compute", "beside", "traffic"])
"""Key of the seconds by which compute is delayed for each second of traffic that runs beside it."""
T = TypeVar("T")


class MeasuredTime(NamedTuple):
    """Seconds of a work and the ends of their 90 % interval."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """All measured works of one folder, ready to look up.

    ``operators`` and ``updates`` are by number of processes that computed at the same time, then by key; an update has
    its bytes of parameters as well. ``launches`` has the seconds of one launch by purpose. ``dtypes`` are those that
    operators were measured in, ``products`` those of matrix products. ``nearby`` are the operators again, for works of
    other sizes.
    """

    path: Path
    card: EventsCard
    operators: dict[int, dict[str, MeasuredTime]]
    updates: dict[int, dict[str, tuple[float, MeasuredTime]]]
    curves: tuple[MeasuredCurve, ...]
    launches: dict[str, MeasuredTime]
    interference: float | None
    dtypes: frozenset[DType]
    products: frozenset[DType]
    nearby: dict[int, NearbyOperators]

    def operator(self, work: Operator, *, several: bool) -> MeasuredTime | None:
        """Return the measured time of an operator; ``several``: other processes of the machine compute as well."""
        key = operator_key(work)
        found = next((found for table in _best(self.operators, several) if (found := table.get(key))), None)
        return self._update(work, several=several) if found is None and work.kind is OpKind.OPTIMIZER else found

    def _update(self, work: Operator, *, several: bool) -> MeasuredTime | None:
        """Return the time of an update, in proportion to the bytes of the parameters that were updated."""
        for table in _best(self.updates, several):
            if update_key(work.name) in table:
                nbytes, found = table[update_key(work.name)]
                return MeasuredTime(*(t * parameter_bytes(work) / nbytes for t in found))
        return None

    def message(self, work: Collective | Transfer, bandwidth: float = 0.0) -> MeasuredTime | None:
        """Return the time of a collective or a message, or ``None`` if nothing like it was measured.

        The time is interpolated between measured sizes, on the curve whose number of ranks is nearest, and then scaled
        to the number of ranks of ``work`` by the law of its collective. If k groups share a node's NICs, the message
        counts as one that is k times larger. ``bandwidth`` is what the cluster states between nodes, in bytes/s. If it
        differs from that of the measured machine, the part of the time above that of the smallest measured message is
        scaled by the ratio of the two.
        """
        n = work.num_ranks if isinstance(work, Collective) else 2
        between = work.num_nodes > 1 if isinstance(work, Collective) else work.crosses_nodes
        if n < 2 or not work.nbytes:
            return MeasuredTime(0.0, 0.0, 0.0)
        alike = [c for c in self.curves if c.collective == name_of(work) and (c.num_nodes > 1) == between]
        if not alike:
            return None
        curve = min(alike, key=lambda c: (abs(c.num_ranks - n), -c.num_ranks))
        found = MeasuredTime(*curve.at(work.nbytes * (work.sharing if between else 1), n))
        if not (between and bandwidth and self.card.link_bandwidth) or bandwidth == self.card.link_bandwidth:
            return found
        ratio, least = self.card.link_bandwidth / bandwidth, min(found.seconds, curve.at(1.0, n)[0])
        factor = (least + (found.seconds - least) * ratio) / found.seconds
        return MeasuredTime(*(t * factor for t in found))

    def launch(self, work: Launch) -> MeasuredTime | None:
        """Return the time of the host's launches, if every purpose that occurs in ``work`` was measured."""
        counts = {name: getattr(work, name) for name in PURPOSES}
        counts["kernels"] += work.prepared
        counts["waits"] *= work.crowded
        if any(counts[name] and name not in self.launches for name in PURPOSES):
            return None
        used = [(counts[name], self.launches[name]) for name in PURPOSES if counts[name]]
        return MeasuredTime(*(sum(n * found[i] for n, found in used) for i in range(3)))


def _best(tables: dict[int, T], several: bool) -> list[T]:
    """Return the tables, those first that were measured with ``several`` processes at once, or with one alone."""
    order = sorted(tables, key=lambda n: ((n > 1) != several, n))
    return [tables[n] for n in order]


def parameter_bytes(update: Operator) -> float:
    """Return the bytes of the parameters that an optimizer's update changes: those of its first result."""
    return float(update.outputs[0].nbytes)


def read_events(path: str | Path) -> Events:
    """Read a folder that ``traincast profile events`` wrote; raise ``FileFormatError`` for anything else."""
    folder = Path(path)
    return events_of(folder, read_card(folder), read_rows(folder))


def events_of(path: Path, card: EventsCard, rows: Sequence[Row]) -> Events:
    """Return ``rows`` ready to look up."""
    operators: dict[int, dict[str, MeasuredTime]] = {}
    updates: dict[int, dict[str, tuple[float, MeasuredTime]]] = {}
    curves: dict[tuple[str, int, int], list[Row]] = {}
    launches: dict[str, MeasuredTime] = {}
    anchors: dict[int, list[Anchor]] = {}
    interference: float | None = None
    for row in rows:
        found = MeasuredTime(row["mean_s"], row["low_s"], row["high_s"])
        match row["kind"]:
            case "operator" if row["key"].startswith('["update"'):
                updates.setdefault(row["num_ranks"], {})[row["key"]] = (row["nbytes"], found)
            case "operator":
                operators.setdefault(row["num_ranks"], {})[row["key"]] = found
                if (anchor := anchor_of(row["key"], *found, fixed=row["fixed_s"])) is not None:
                    anchors.setdefault(row["num_ranks"], []).append(anchor)
            case "collective" | "transfer" if row["collective"] in LAWS:
                curves.setdefault((row["collective"], row["num_ranks"], row["num_nodes"]), []).append(row)
            case "launch" if row["collective"] in PURPOSES:
                launches[row["collective"]] = found
            case "interference" if row["key"] == BESIDE_TRAFFIC:
                interference = row["mean_s"]
            case "interference":
                pass
            case _:
                raise FileFormatError(f"{path} has a row of kind {row['kind']!r}, which this Traincast does not know")
    return Events(
        path=path,
        card=card,
        operators=operators,
        updates=updates,
        curves=tuple(_curve(*shape, points, backend=card.backend) for shape, points in curves.items()),
        launches=launches,
        interference=interference,
        dtypes=_floating(anchor.operator for found in anchors.values() for anchor in found),
        products=_floating(a.operator for found in anchors.values() for a in found if a.operator.kind in PRODUCTS),
        nearby={n: NearbyOperators(found) for n, found in anchors.items()} if card.compute == REAL else {},
    )


def _floating(operators: Iterable[Operator]) -> frozenset[DType]:
    return frozenset(operator.dtype for operator in operators if operator.dtype.is_floating)


def _curve(collective: str, num_ranks: int, num_nodes: int, rows: list[Row], *, backend: str) -> MeasuredCurve:
    points = sorted(rows, key=lambda row: float(row["nbytes"]))

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([row[name] for row in points], dtype=np.float64)

    return MeasuredCurve(
        collective=collective,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        nbytes=column("nbytes"),
        seconds=column("mean_s"),
        low=np.maximum(column("low_s"), 1e-12),
        high=column("high_s"),
        laws=GLOO_LAWS if backend == "gloo" else LAWS,
    )


@dataclass(frozen=True, slots=True)
class EventsCostModel:
    """Estimates every work that ``events`` has by its measured time, and all others by ``fallback``."""

    events: Events
    fallback: CostModel

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds, interval and source of every work, in order; refuses events of another device or dtype."""
        self.check(works, cluster)
        several = any(isinstance(work, Collective | Transfer) for work in works)
        found = [self._found(work, cluster, several=several) for work in works]
        carried = self._carry(works, found, cluster, several=several)
        rest = [i for i, one in enumerate(found) if one is None]
        told = self.fallback.estimate([works[i] for i in rest], cluster)
        columns = np.array([one or (0.0, 0.0, 0.0) for one in found], dtype=np.float64).reshape(-1, 3)
        source = np.full(len(works), MEASURED, dtype=np.int8)
        source[carried] = CARRIED
        unmeasured = np.zeros(len(works), dtype=bool)
        bundle = None if told.bundle is None else np.full(len(works), -1, dtype=np.int16)
        if rest:
            columns[rest] = np.column_stack([told.seconds, told.low, told.high])
            source[rest] = told.source
            if told.unmeasured is not None:
                unmeasured[rest] = told.unmeasured
            if bundle is not None and told.bundle is not None:
                bundle[rest] = told.bundle
        return Estimates(
            seconds=columns[:, 0].copy(),
            low=columns[:, 1].copy(),
            high=columns[:, 2].copy(),
            source=source,
            warnings=told.warnings if rest else (),
            bundle=bundle,
            bundles=told.bundles,
            unmeasured=unmeasured,
        )

    def _carry(
        self, works: Sequence[Work], found: list[MeasuredTime | None], cluster: Cluster, *, several: bool
    ) -> list[int]:
        """Fill in operators that were measured at other sizes, and return their numbers."""
        carried: list[int] = []
        if self.events.card.device != cluster.device.name:
            return carried
        for table in _best(self.events.nearby, several)[:1]:
            asked = {
                i: work for i, work in enumerate(works)
                if found[i] is None and isinstance(work, Operator) and work.kind is not OpKind.OPTIMIZER
            }  # fmt: skip
            times = table.carried(list(asked.values()), self.fallback, cluster) if asked else []
            for i, time in zip(asked, times, strict=True):
                if time is not None:
                    found[i] = MeasuredTime(time.seconds, time.low, time.high)
                    if not time.same:
                        carried.append(i)
        return carried

    def _found(self, work: Work, cluster: Cluster, *, several: bool) -> MeasuredTime | None:
        match work:
            case Operator() if self.events.card.device != cluster.device.name:
                return None  # emulated compute on nodes of several kinds
            case Operator():
                return self.events.operator(work, several=several)
            case Launch():
                return self.events.launch(work)
            case Collective() | Transfer():
                return self.events.message(work, cluster.inter_node.bandwidth)
            case _:
                return None

    def on(self, cluster: Cluster) -> Cluster:
        """Return ``cluster`` with the measured interference, and without a calibration: measured times need none."""
        if self.events.card.device not in {kind.device.name for kind in cluster.kinds()}:
            raise self._of_another_device(cluster)
        if self.events.interference is None:
            return replace(cluster, calibration=None)
        measured = min(10.0, self.events.interference)

        def changed(part: Cluster) -> Cluster:
            return replace(part, device=replace(part.device, interference=measured), calibration=None)

        return replace(changed(cluster), parts=tuple(changed(part) for part in cluster.parts))

    def with_fallback(self, change: Callable[[CostModel], CostModel]) -> EventsCostModel:
        """Return the same events over ``change(fallback)``."""
        return replace(self, fallback=change(self.fallback))

    def _of_another_device(self, cluster: Cluster) -> RequestError:
        return RequestError(
            f"events {self.events.path} were measured on {self.events.card.device}, but {cluster.name} has "
            f"{cluster.device.name}: measure them on its nodes with `traincast profile events`"
        )

    def check(self, works: Sequence[Work], cluster: Cluster) -> None:
        """Refuse events that were measured on another device, with another backend or in another dtype."""
        card, where = self.events.card, self.events.path
        if card.device != cluster.device.name and card.compute == REAL:
            raise self._of_another_device(cluster)
        backend = "gloo" if cluster.device.architecture == PROCESSOR or card.compute != REAL else "nccl"
        if card.backend != backend:
            raise RequestError(
                f"events {where} were measured with {card.backend}, but {cluster.device.name} communicates with "
                f"{backend}: measure them again with --backend {backend}"
            )
        wanted, measured = self._dtypes(works)
        if wanted and measured and not wanted & measured:
            named = [", ".join(sorted(dtype.value for dtype in dtypes)) for dtypes in (measured, wanted)]
            raise RequestError(
                f"events {where} were measured in {named[0]}, but the step computes in {named[1]}: use --precision "
                f"{card.precision}, or measure them again"
            )

    def _dtypes(self, works: Sequence[Work]) -> tuple[frozenset[DType], frozenset[DType]]:
        """Return the dtype in which works compute, and those that were measured.

        Matrix products decide, and among them the dtype with most of the arithmetic: every mixed precision has norms,
        losses and updates in fp32 as well. Without products, every dtype counts.
        """
        operators = [work for work in works if isinstance(work, Operator)]
        flops: Counter[DType] = Counter()
        for work in operators:
            if work.kind in PRODUCTS and work.dtype.is_floating:
                flops[work.dtype] += int(work.flops) + 1
        if flops and self.events.products:
            return frozenset({max(flops, key=lambda dtype: flops[dtype])}), self.events.products
        return _floating(operators), self.events.dtypes
