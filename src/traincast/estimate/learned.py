"""The learned cost model: fitted bundles estimate works like those that were measured, physics estimates the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, Device
from traincast.errors import RequestError
from traincast.estimate.analytical import AnalyticalCostModel, attention_share
from traincast.estimate.bundle import SHIPPED, Bundle, load_bundle
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.estimate.operators.cells import ANY, Cell, beside, setting_of
from traincast.estimate.operators.efficiency import achievable, resembles_measured
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import INTERCHANGEABLE, Shapes, family_of, shapes_of
from traincast.estimate.operators.grouped import INTERVAL, as_product, grouped_seconds, of_training
from traincast.estimate.operators.points import KIN
from traincast.estimate.protocol import SOURCES, CostModel, Estimates
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec
from traincast.graph.work_amount import gemm_dims
from traincast.work import Collective, Transfer, Work

_ADDITION: Final = "add.fwd"
_TRAFFIC: Final = {
    "native_batch_norm": 1.5,  # reads its input for the statistics, reads it again, writes
    "native_batch_norm_backward": 5.0 / 3.0,  # reads input and gradient twice, writes
    "fused_batch_norm": 1.5,
    "fused_batch_norm_backward": 5.0 / 3.0,
    "relu": 1.0,
    "relu_": 1.0,
    "threshold_backward": 1.0,
    "hardtanh": 1.0,
    "hardtanh_": 1.0,
    "hardtanh_backward": 1.0,
    "silu": 1.0,
    "silu_": 1.0,
    "silu_backward": 1.0,
    "leaky_relu": 1.0,
    "leaky_relu_": 1.0,
    "leaky_relu_backward": 1.0,
    "max_pool2d_with_indices": 1.0,
    "max_pool2d_with_indices_backward": 1.8,  # fills the result with zeros, then adds to scattered places
    "avg_pool2d": 1.0,
    "avg_pool2d_backward": 1.0,
}
"""Bytes that kernels of convolutional networks move, in units of those of their tensors.

These kernels are in no table of measurements, but they wait for memory, and so does the addition of two tensors, which
was measured on many devices. So an addition that moves as many bytes takes their place. Kernels that read a tensor
twice, or write to scattered places, move more bytes than their tensors have.
"""


def equivalent_of(op: Operator) -> Operator | None:
    """Returns the addition that moves as many bytes as ``op``, or ``None`` if there is none."""
    factor = _TRAFFIC.get(op.name)
    if factor is None or op.dtype is not DType.FP32:
        return None
    elements = max(1, round(op.nbytes * factor / (3 * op.dtype.nbytes)))
    tensor = TensorSpec((elements,), op.dtype)
    return Operator(
        name=_ADDITION, kind=OpKind.ELEMENTWISE, phase=Phase.FORWARD, inputs=(tensor, tensor), outputs=(tensor,)
    )


def equivalents(operators: Sequence[Operator]) -> dict[int, Operator]:
    """Returns the additions that take the place of ``operators``, by position."""
    found = {i: equivalent_of(op) for i, op in enumerate(operators)}
    return {i: op for i, op in found.items() if op is not None}


_LEARNED: Final = SOURCES.index("learned")
_PREFERRED: Final = ("serving", "pytorch/megatron-deepspeed", "megatron/te", "pytorch")
"""Settings to ask first if the request names none. The most recent kernels come first."""
_ASKED_ONLY: Final = ("tensorflow", "cudnn/miopen/mkl")
"""Settings that are used only if the request names them: TensorFlow layers with their overhead, libraries of 2017."""
BARE: Final = "bare"
"""The setting of cells of bare kernels: what a device runs, without the overhead of a framework around each layer."""
_TRANSFERABLE: Final = ("product", "grouped", "attention")
"""Families whose kernels were measured alone on enough devices to estimate them on a device that was not measured."""
_CREDIBLE: Final = 8.0
"""The largest factor between physics and an estimate learned on other devices; beyond it the estimate is cut off."""
_NEAR: Final = float(np.log(1.05))
"""How far outside the measured range a size may be, in logarithm, before there is a warning."""
_FEW: Final = 512
"""Rows and columns of a thin product. Measured ones have at most 65,536 along the third side, and odd sizes."""
WORD: Final = {
    "product": "matrix products", "grouped": "grouped products", "attention": "attention operators",
    "conv": "convolutions", "recurrent": "recurrent layers", "traffic": "memory-bound operators",
}  # fmt: skip
"""What users call the operators of a family."""


class _Answer(NamedTuple):
    """The cell that estimates some operators, and the bundle that it belongs to."""

    bundle: Bundle
    cell: Cell


@dataclass(frozen=True, slots=True)
class LearnedCostModel:
    """Estimates each work by the first of ``bundles`` and ``collectives`` that knows it, others by ``otherwise``.

    ``given`` are the paths of the bundles that the user named; estimates say which of them each time comes from.
    ``framework`` names the setting whose measurements are preferred, spelt as in tables of measurements.
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
            strange = answer.cell.device == ANY and answer.cell.points is None
            if answer.cell.family == "product":
                thin = _thin(chosen) & (found.outside > _NEAR)
                physics = self.otherwise.estimate(chosen, cluster).seconds if thin.any() else found.seconds
                share = share * np.where(thin, _drawn(found.seconds / share, physics, found.outside), 1.0)
            if strange:
                share = share * _beyond(found.seconds / share, self.otherwise.estimate(chosen, cluster).seconds)
                share = share / np.maximum(1.0, _at_own_rate(chosen, cluster.device) * share / found.seconds)
            for name, column in columns.items():
                column[where] = getattr(found, name) / share
            source[where] = _LEARNED
            unmeasured[where] = strange
        self._grouped(works, cluster, columns, (source, bundle), (unmeasured, warnings))
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

    def _grouped(
        self,
        works: Sequence[Work],
        cluster: Cluster,
        columns: Mapping[str, npt.NDArray[np.float64]],
        told: tuple[npt.NDArray[np.int8], npt.NDArray[np.int16]],
        marks: tuple[npt.NDArray[np.bool_], dict[str, None]],
    ) -> None:
        """Fill in the grouped products of training that no cell knows, from learned products of the same rows.

        Their law is relative to the products of inference, which were measured on most devices.
        """
        (source, bundle), (unmeasured, warnings) = told, marks
        places = [i for i, w in enumerate(works) if source[i] < 0 and isinstance(w, Operator) and of_training(w)]
        if not places:
            return
        operators = [cast(Operator, works[i]) for i in places]
        found = replace(self, framework="").estimate([as_product(op) for op in operators], cluster)
        assert found.bundle is not None and found.unmeasured is not None
        for i, op, n in zip(places, operators, range(len(places)), strict=True):
            if found.source[n] != _LEARNED:
                continue
            product_s = float(found.seconds[n])
            seconds = grouped_seconds(op, cluster.device, product_s=product_s)
            columns["seconds"][i] = seconds
            for name, share in zip(("low", "high"), INTERVAL, strict=True):
                columns[name][i] = seconds * share * float(getattr(found, name)[n]) / product_s
            source[i], bundle[i], unmeasured[i] = _LEARNED, found.bundle[n], found.unmeasured[n]
        warnings |= dict.fromkeys(found.warnings)

    def _number(self, path: Path | None) -> int:
        """The position of a bundle in ``given``, or −1."""
        return self.given.index(path) if path in self.given else -1

    @property
    def devices(self) -> dict[str, Device]:
        """Devices that bundles describe and the catalog does not have, by name."""
        return {name: device for bundle in self.bundles for name, device in bundle.devices.items()}

    def knows(self, operators: Sequence[Operator], cluster: Cluster) -> npt.NDArray[np.bool_]:
        """Returns for each operator whether a bundle can estimate it."""
        known = np.zeros(len(operators), dtype=bool)
        for rows, *_ in self._cells_for(operators, cluster.device):
            known[rows] = True
        return known

    def _operators(
        self, operators: Sequence[Operator], device: Device, warnings: dict[str, None]
    ) -> Iterator[tuple[npt.NDArray[np.intp], Any, _Answer]]:
        """Yields positions of operators, their estimate by a cell, and that cell."""
        if self.framework and not any(setting_of(self.framework) in bundle.settings for bundle in self.bundles):
            text = f"no bundle has operators measured under {self.framework!r}; those of other frameworks are used"
            warnings[text] = None
        for rows, answer, (shapes, dtype) in self._cells_for(operators, device):
            cell = answer.cell
            own = cell.device if cell.device != ANY else device.name
            rates = Rates.of(self.devices.get(own, device), dtype)
            general = cell.setting == ANY
            framework = setting_of(self.framework) if general and self.framework else self.framework
            found = cell.estimate(shapes, rates, framework=framework, dtype=dtype, device=device)
            outside = int((found.outside > _NEAR).sum())
            what = WORD[cell.family]
            if cell.device == ANY and cell.points is None:
                warnings[
                    f"{device.name} was not measured: {what} are estimated from its datasheet and the devices most "
                    "like it"
                ] = None
            elif cell.points is None and cell.device != device.name:
                warnings[f"{what} on {device.name} take the times measured on {cell.device}"] = None
            if outside:
                size, time = ("has a size", "its time is") if outside == 1 else ("have sizes", "their times are")
                where = "other devices" if cell.device == ANY else cell.device
                text = f"{outside} of {len(shapes)} {what} {size} outside the range measured on {where}"
                warnings[f"{text}; {time} extrapolated"] = None
            yield rows, found, answer

    def _cells_for(
        self, operators: Sequence[Operator], device: Device
    ) -> Iterator[tuple[npt.NDArray[np.intp], _Answer, tuple[Shapes, str]]]:
        """Yields for each cell the positions of the operators it estimates, the cell, and (their shapes, dtype)."""
        groups: dict[tuple[str, str], list[int]] = {}
        for i, op in enumerate(operators):
            family = family_of(op)
            if family is not None:
                groups.setdefault((family, op.dtype.value), []).append(i)
        for (family, stated), members in groups.items():
            left = np.array(members, dtype=np.intp)
            shapes = shapes_of(family, [operators[i] for i in members])
            for answer, dtype in self._candidates(family, stated, device):
                known = answer.cell.knows(shapes)
                if family == "grouped" and answer.cell.device == ANY:  # their law is surer than other devices' kernels
                    known &= ~np.array([of_training(operators[i]) for i in left.tolist()], dtype=bool)
                if family == "attention" and answer.cell.device == ANY:  # backward was measured on one device alone
                    known &= np.array([operators[i].phase is not Phase.BACKWARD for i in left.tolist()], dtype=bool)
                if known.any():
                    chosen = np.flatnonzero(known)
                    yield left[chosen], answer, (shapes.take(chosen), dtype)
                    kept = np.flatnonzero(~known)
                    left, shapes = left[kept], shapes.take(kept)
                if not len(left):
                    break
            if family == "traffic" and len(left):
                yield from self._equivalents(operators, left, device)

    def _equivalents(
        self, operators: Sequence[Operator], left: npt.NDArray[np.intp], device: Device
    ) -> Iterator[tuple[npt.NDArray[np.intp], _Answer, tuple[Shapes, str]]]:
        """As :meth:`_cells_for`, for operators that no cell knows: a measured one that moves as many bytes."""
        found = equivalents([operators[i] for i in left.tolist()])
        if not found or not any(True for b in self.bundles for _ in _bare(b, "conv", DType.FP32.value, device, BARE)):
            return  # without measured convolutions beside them, one error would no longer balance the other
        shapes = shapes_of("traffic", list(found.values()))
        dtype = next(iter(found.values())).dtype.value
        for bundle in self.bundles:
            for name in bundle.siblings("traffic", dtype, device):
                cell = bundle.cell(name)
                if cell.knows(shapes).all():
                    yield left[list(found)], _Answer(bundle, cell), (shapes, dtype)
                    return

    def _candidates(self, family: str, stated: str, device: Device) -> Iterator[tuple[_Answer, str]]:
        """Cells to try for operators in the dtype ``stated``, best first, and the dtype that each computes in.

        A product whose dtype the device lacks is computed in a wider one, unless the device was measured in it.
        """
        lacks = family != "traffic" and not device.supports(stated)
        for answer in self._cells_in(family, stated, device, exactly=lacks):
            yield answer, stated
        if lacks:
            dtype = device.computes_in(stated)
            for answer in self._cells_in(family, dtype, device):
                yield answer, dtype

    def _cells_in(self, family: str, dtype: str, device: Device, *, exactly: bool = False) -> Iterator[_Answer]:
        """Cells of one dtype: those of the device, or the network of all devices if it has none.

        Of the device's cells, those of the wanted setting come first, then bare kernels, then other settings. With
        ``exactly``, only measurements of the device in this very dtype count.
        """
        wanted = setting_of(self.framework) if self.framework else ""
        dtypes = (dtype,) if exactly else (dtype, INTERCHANGEABLE.get(dtype))
        ranks = {name: i for i, name in enumerate(dict.fromkeys((wanted, BARE, *_PREFERRED)))}
        measured = False
        for bundle in self.bundles:
            own: list[tuple[tuple[int, int], str]] = []
            for name, entry in bundle.entries.get((family, bundle.name_of(device)), []):
                if entry["setting"] != wanted and ("base" in entry or entry["setting"] in _ASKED_ONLY):
                    continue  # a few measurements of one setting, or of an old one: for those who ask for it
                if entry["dtype"] in dtypes:
                    own.append(((ranks.get(entry["setting"], len(ranks)), int(entry["dtype"] != dtype)), name))
            kernels = _bare(bundle, family, dtype, device, wanted)
            own += [((-1 if asked else ranks[BARE], 0), name) for asked, name in kernels]
            for _, name in sorted(own):
                yield _Answer(bundle, bundle.cell(name))
            measured = measured or bool(own)
        named = wanted not in ("", BARE)
        alike = achievable(device).graphics and resembles_measured(device, dtype)
        if not (measured or exactly) and (named or family in _TRANSFERABLE) and alike:
            for bundle in self.bundles:
                for cell in _transferred(bundle, family, dtype, device, wanted):
                    yield _Answer(bundle, cell)

    def _collectives(
        self,
        works: Sequence[Work],
        cluster: Cluster,
        columns: Mapping[str, npt.NDArray[np.float64]],
        told: tuple[npt.NDArray[np.int8], npt.NDArray[np.int16]],
        warnings: dict[str, None],
    ) -> None:
        """Fill in the times of learned collectives and transfers, and their source and bundle in ``told``."""
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


def _thin(operators: Sequence[Operator]) -> npt.NDArray[np.bool_]:
    """Whether each product has two sizes of at most :data:`_FEW`: if the third is huge, libraries split it up."""
    return np.array([sorted(gemm_dims(op)[1:])[1] <= _FEW for op in operators], dtype=bool)


def _drawn(
    seconds: npt.NDArray[np.float64], physics: npt.NDArray[np.float64], outside: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the factor by which each estimate is divided to draw it towards physics.

    The result is a mean of both, in logarithms. The weight of physics grows with the distance ``outside`` of the
    measured range, so slowly that a larger operator never takes less time.
    """
    ratio = np.clip(seconds / np.maximum(physics, 1e-12), np.exp(-1.0), np.exp(1.0))
    found: npt.NDArray[np.float64] = ratio ** (outside / (1.0 + outside))
    return found


def _beyond(seconds: npt.NDArray[np.float64], physics: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The factor by which each estimate exceeds :data:`_CREDIBLE` times physics, either way; 1 inside."""
    ratio = seconds / np.maximum(physics, 1e-12)
    found: npt.NDArray[np.float64] = ratio / np.clip(ratio, 1.0 / _CREDIBLE, _CREDIBLE)
    return found


def _at_own_rate(works: Sequence[Work], device: Device) -> npt.NDArray[np.float64]:
    """The seconds of each product at the best rate that was measured on ``device`` itself; 0 if it states none.

    No product is estimated to be faster than this, whatever part of their peaks other devices reach.
    """
    if "gemm" not in device.achievable:
        return np.zeros(len(works))
    reach = achievable(device)
    return np.array(
        [
            op.flops / (reach.gemm_fraction(op.dtype.value) * device.peak(op.dtype.value))
            if isinstance(op, Operator) and op.kind in (OpKind.GEMM, OpKind.BATCHED_GEMM)
            else 0.0
            for op in works
        ]
    )


def _bare(bundle: Bundle, family: str, dtype: str, device: Device, wanted: str) -> Iterator[tuple[bool, str]]:
    """Yield the cell of bare kernels if it can estimate these operators.

    Yields whether its setting is ``wanted``, and its name. It estimates operators in full precision, on devices that
    are kin to a measured one: libraries of 2017 moved half-precision tensors into another layout and back for each
    convolution. If its own setting is wanted, it estimates them everywhere.
    """
    for name, entry in bundle.entries.get((family, ANY), []):
        if entry["setting"] != BARE:
            continue
        known = entry["vocabulary"]
        points = bundle.cell(name).points
        asked = wanted in known["setting"]
        if points is None or not {dtype, INTERCHANGEABLE.get(dtype)} & set(known["dtype"]):
            continue
        if asked or (points.likeness(device).max() >= KIN and dtype not in INTERCHANGEABLE):
            yield asked, name


def _transferred(bundle: Bundle, family: str, dtype: str, device: Device, wanted: str) -> Iterator[Cell]:
    """Yield the cell for a device that was not measured: the network of all devices, with cells of similar devices.

    The network treats a setting that it does not know as the first one in its vocabulary. If that is one of
    :data:`_ASKED_ONLY`, nothing is yielded.
    """
    for name, entry in bundle.entries.get((family, ANY), []):
        if entry["setting"] != ANY:
            continue
        settings = entry["vocabulary"]["setting"]
        if wanted not in settings and settings[0] in _ASKED_ONLY:
            continue
        for stated in (dtype, INTERCHANGEABLE.get(dtype, dtype)):
            if stated in entry["vocabulary"]["dtype"]:
                yield beside(bundle.cell(name), device, stated, bundle.measured(family, stated))
                return


def learned_cost_model(paths: Sequence[Path] = ()) -> LearnedCostModel:
    """Returns a cost model that tries the bundles in ``paths`` in this order, then those that ship with Traincast."""
    operators: list[Bundle] = []
    collectives: list[CollectiveModel] = []
    given = tuple(dict.fromkeys(paths))
    for path in (*given, *(SHIPPED / name for name in ("operators", "collectives"))):
        if path not in given and not path.is_dir():
            continue
        bundle = load_bundle(path)
        if bundle.card["kind"] == "operators":
            operators.append(bundle)
        elif bundle.card["kind"] == "resources":
            raise RequestError(
                f"{path} is an inspector of resources, and estimates no times: give it to `traincast predict "
                "--resources --bundle`"
            )
        else:
            collectives.append(
                CollectiveModel(weights=bundle.arrays(), card=bundle.card["model"], path=path, given=path in given)
            )
    return LearnedCostModel(bundles=tuple(operators), collectives=tuple(collectives), given=given)
