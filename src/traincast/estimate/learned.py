"""The learned cost model: bundles of fitted weights where something like the work was measured, physics elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, Device
from traincast.estimate.analytical import AnalyticalCostModel, attention_share
from traincast.estimate.bundle import SHIPPED, Bundle, load_bundle
from traincast.estimate.cells import ANY, Cell, beside, setting_of
from traincast.estimate.families import Rates
from traincast.estimate.features import INTERCHANGEABLE, Shapes, family_of, shapes_of
from traincast.estimate.learned_collectives import CollectiveModel
from traincast.estimate.protocol import SOURCES, CostModel, Estimates
from traincast.graph import Operator
from traincast.work import Collective, Transfer, Work

_LEARNED: Final = SOURCES.index("learned")
_PREFERRED: Final = ("serving", "pytorch/megatron-deepspeed", "megatron/te", "pytorch")
"""Settings to ask first where the request names none: the most recent kernels first."""
_ASKED_ONLY: Final = ("tensorflow", "cudnn/miopen/mkl")
"""Settings that answer only those who name them: layers with their framework's floor, and libraries of 2017."""
_TRANSFERABLE: Final = ("product", "grouped", "attention")
"""Families whose kernels were measured bare on enough devices to speak of one that was not."""
_CREDIBLE: Final = 8.0
"""How far from physics an estimate may be that was learned on other devices: beyond it, the network is lost."""
_NEAR: Final = float(np.log(1.05))
"""How far outside the measurements a size may be before a warning says so."""
WORD: Final = {
    "product": "matrix products", "grouped": "grouped products", "attention": "attentions",
    "conv": "convolutions", "traffic": "memory-bound operators",
}  # fmt: skip
"""What users call the operators of a family."""


class _Answer(NamedTuple):
    """A cell that answers for some operators, and the bundle that it is from."""

    bundle: Bundle
    cell: Cell


@dataclass(frozen=True, slots=True)
class LearnedCostModel:
    """Estimates operators and collectives from ``bundles``, the first that knows a work; the rest by ``otherwise``.

    ``given`` are the paths of those that a user named; estimates say which of them each time is from. ``framework``
    names the setting whose measurements to prefer, as tables of measurements spell it.
    """

    bundles: tuple[Bundle, ...] = ()
    collectives: tuple[CollectiveModel, ...] = ()
    given: tuple[Path, ...] = ()
    framework: str = ""
    otherwise: CostModel = field(default_factory=AnalyticalCostModel)

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds, interval and source of every work, in order; never NaN, never negative."""
        count = len(works)
        columns = {name: np.zeros(count) for name in ("seconds", "low", "high")}
        source = np.full(count, -1, dtype=np.int8)
        bundle = np.full(count, -1, dtype=np.int16)
        unmeasured = np.zeros(count, dtype=bool)
        warnings: dict[str, None] = {}
        places = [i for i, work in enumerate(works) if isinstance(work, Operator)]
        for rows, found, answer in self._operators([works[i] for i in places], cluster.device, warnings):  # type: ignore[misc]
            where = np.asarray(places, dtype=np.intp)[rows]
            bundle[where] = self._number(answer.bundle.path)
            chosen = [works[i] for i in where.tolist()]
            share = np.array([attention_share(work, cluster.device) for work in chosen])
            if answer.cell.device == ANY:
                share = share * _beyond(found.seconds / share, self.otherwise.estimate(chosen, cluster).seconds)
            for name, column in columns.items():
                column[where] = getattr(found, name) / share
            source[where] = _LEARNED
            unmeasured[where] = answer.cell.device == ANY
        self._collectives(works, cluster, columns, (source, bundle), warnings)
        rest = np.flatnonzero(source < 0)
        if len(rest):
            physics = self.otherwise.estimate([works[i] for i in rest.tolist()], cluster)
            for name, column in columns.items():
                column[rest] = getattr(physics, name)
            source[rest] = physics.source
            if physics.unmeasured is not None:
                unmeasured[rest] = physics.unmeasured
            warnings |= dict.fromkeys(physics.warnings)
        return Estimates(
            **columns,
            source=source,
            warnings=tuple(warnings),
            bundle=bundle,
            bundles=tuple(map(str, self.given)),
            unmeasured=unmeasured,
        )

    def _number(self, path: Path | None) -> int:
        """The number of a bundle among those that were given, or −1."""
        return self.given.index(path) if path in self.given else -1

    @property
    def devices(self) -> dict[str, Device]:
        """Devices outside the catalog that bundles bring along, by name."""
        return {name: device for bundle in self.bundles for name, device in bundle.devices.items()}

    def knows(self, operators: Sequence[Operator], cluster: Cluster) -> npt.NDArray[np.bool_]:
        """Which operators a bundle estimates."""
        known = np.zeros(len(operators), dtype=bool)
        for rows, *_ in self._cells_for(operators, cluster.device):
            known[rows] = True
        return known

    def _operators(
        self, operators: Sequence[Operator], device: Device, warnings: dict[str, None]
    ) -> Iterator[tuple[npt.NDArray[np.intp], Any, _Answer]]:
        """Rows, what a cell says of them, and which cell that is."""
        if self.framework and not any(setting_of(self.framework) in bundle.settings for bundle in self.bundles):
            warnings[f"no bundle has operators of {self.framework!r}: those of other frameworks are taken"] = None
        for rows, answer, (shapes, dtype) in self._cells_for(operators, device):
            cell = answer.cell
            own = cell.device if cell.device != ANY else device.name
            rates = Rates.of(self.devices.get(own, device), dtype)
            general = cell.setting == ANY
            framework = setting_of(self.framework) if general and self.framework else self.framework
            found = cell.estimate(shapes, rates, framework=framework, dtype=dtype)
            outside = int((found.outside > _NEAR).sum())
            what = WORD[cell.family]
            if cell.device == ANY:
                warnings[
                    f"{device.name} was not measured: {what} are estimated from its datasheet and the devices most "
                    "like it"
                ] = None
            elif cell.device != device.name:
                warnings[f"{what} on {device.name}: as measured on {cell.device}"] = None
            if outside:
                warnings[
                    f"{outside} of {len(shapes)} distinct {what} lie outside what was measured ({cell.id}): taken at "
                    "the efficiency of the nearest measured size"
                ] = None
            yield rows, found, answer

    def _cells_for(
        self, operators: Sequence[Operator], device: Device
    ) -> Iterator[tuple[npt.NDArray[np.intp], _Answer, tuple[Shapes, str]]]:
        """Which cell estimates which operators: positions, cell, and (their shapes, dtype)."""
        groups: dict[tuple[str, str], list[int]] = {}
        for i, op in enumerate(operators):
            family = family_of(op)
            if family is not None:
                groups.setdefault((family, op.dtype.value), []).append(i)
        for (family, dtype), members in groups.items():
            left = np.array(members, dtype=np.intp)
            shapes = shapes_of(family, [operators[i] for i in members])
            for answer in self._candidates(family, dtype, device):
                known = answer.cell.knows(shapes)
                if known.any():
                    chosen = np.flatnonzero(known)
                    yield left[chosen], answer, (shapes.take(chosen), dtype)
                    kept = np.flatnonzero(~known)
                    left, shapes = left[kept], shapes.take(kept)
                if not len(left):
                    break

    def _candidates(self, family: str, dtype: str, device: Device) -> Iterator[_Answer]:
        """Cells to ask, the best first: those of the device, or the network of all devices where it has none."""
        wanted = setting_of(self.framework) if self.framework else ""
        ranks = {name: i for i, name in enumerate(dict.fromkeys((wanted, *_PREFERRED)))}
        measured = False
        for bundle in self.bundles:
            own: list[tuple[tuple[int, int], str]] = []
            for name, entry in bundle.entries.get((family, bundle.name_of(device)), []):
                if entry["setting"] != wanted and ("base" in entry or entry["setting"] in _ASKED_ONLY):
                    continue  # a few measurements of one setting, or of an old one: for those who ask for it
                if entry["dtype"] in (dtype, INTERCHANGEABLE.get(dtype)):
                    own.append(((ranks.get(entry["setting"], len(ranks)), int(entry["dtype"] != dtype)), name))
            for _, name in sorted(own):
                yield _Answer(bundle, bundle.cell(name))
            measured = measured or bool(own)
        if not measured and (wanted or family in _TRANSFERABLE):
            for bundle in self.bundles:
                for cell in _transferred(bundle, family, dtype, device):
                    yield _Answer(bundle, cell)

    def _collectives(
        self,
        works: Sequence[Work],
        cluster: Cluster,
        columns: Mapping[str, npt.NDArray[np.float64]],
        told: tuple[npt.NDArray[np.int8], npt.NDArray[np.int16]],
        warnings: dict[str, None],
    ) -> None:
        """Fill in collectives and transfers that were learned, and in ``told`` their source and bundle."""
        source, bundle = told
        places = [i for i, work in enumerate(works) if isinstance(work, Collective | Transfer)]
        for model in self.collectives:
            if not places:
                return
            found = model.estimate([works[i] for i in places], cluster)  # type: ignore[misc]
            where = np.asarray(places, dtype=np.intp)[found.learned]
            for name, column in columns.items():
                column[where] = getattr(found, name)[found.learned]
            source[where], bundle[where] = _LEARNED, self._number(model.path)
            warnings |= dict.fromkeys(found.warnings)
            places = np.asarray(places, dtype=np.intp)[~found.learned].tolist()


def _beyond(seconds: npt.NDArray[np.float64], physics: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By what factor estimates lie outside :data:`_CREDIBLE` times what physics says: 1 where they do not."""
    ratio = seconds / np.maximum(physics, 1e-12)
    found: npt.NDArray[np.float64] = ratio / np.clip(ratio, 1.0 / _CREDIBLE, _CREDIBLE)
    return found


def _transferred(bundle: Bundle, family: str, dtype: str, device: Device) -> Iterator[Cell]:
    """The network of all devices for one that was not measured, beside the cells of those most like it."""
    for name, entry in bundle.entries.get((family, ANY), []):
        for stated in (dtype, INTERCHANGEABLE.get(dtype, dtype)):
            if stated in entry["vocabulary"]["dtype"]:
                yield beside(bundle.cell(name), device, stated, bundle.measured(family, stated))
                return


def learned_cost_model(paths: Sequence[Path] = ()) -> LearnedCostModel:
    """The bundles in ``paths``, in this order, and then those that come with Traincast."""
    operators: list[Bundle] = []
    collectives: list[CollectiveModel] = []
    given = tuple(dict.fromkeys(paths))
    for path in (*given, *(SHIPPED / name for name in ("operators", "collectives"))):
        if path not in given and not path.is_dir():
            continue
        bundle = load_bundle(path)
        if bundle.card["kind"] == "operators":
            operators.append(bundle)
        else:
            collectives.append(
                CollectiveModel(weights=bundle.arrays(), card=bundle.card["model"], path=path, given=path in given)
            )
    return LearnedCostModel(bundles=tuple(operators), collectives=tuple(collectives), given=given)
