"""Measured operators as points of a Gaussian process, for families with a few hundred measurements per device.

An operator takes the efficiency of the measured operators most like it: of near sizes, of the same name, dtype and
setting, on the same device or one of a near generation. The covariance of log(time / roofline) of two operators is

    (spread² · exp(−distance) + bias²) · names · dtypes · settings · devices + common²

where ``distance`` is Euclidean between the places of their sizes
(:attr:`traincast.estimate.operators.families.OperatorFamily.place`), and each other factor is 1 for equal ones. With
covariance K of the measured operators and noise n, an operator with covariances k to them is expected at mean + k · (K
+ n² I)⁻¹ · (log(time / roofline) − mean): Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006),
equation 2.25.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FAMILIES: Final = ("gcn", "cdna", "rdna")
"""How the names of another maker's architectures begin, also of those that no file describes."""
_SAME_CHIP: Final = 0.99
"""Kinship of two cards with the same chip: they differ in clock and memory, which the roofline knows."""
KIN: Final = 0.9
"""Kinship from which the points of one device speak for another: the same chip, or the same architecture."""
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """How far operators speak for each other; each of the last six is the factor for unequal ones."""

    spread: float = 1.0
    bias: float = 0.3
    common: float = 0.3
    noise: float = 0.05
    names: float = 0.4
    dtypes: float = 0.3
    settings: float = 0.7
    architecture: float = 0.93
    generation: float = 0.9
    strangers: float = 0.4

    def kinship(self, one: Kin, other: Kin) -> float:
        """Return the factor of the covariance for two devices: 1 for the same device, less the more they differ."""
        if one.name == other.name:
            return 1.0
        if one.architecture == other.architecture:
            return _SAME_CHIP if one.num_sms == other.num_sms else self.architecture
        places = [load_architecture(kin.architecture).generation for kin in (one, other)]
        if all(places):
            return max(self.strangers, self.architecture * self.generation ** abs(places[0] - places[1]))
        related = all(kin.architecture.startswith(_FAMILIES) for kin in (one, other))
        return self.architecture * self.generation if related else self.strangers


@dataclass(frozen=True, slots=True)
class Kin:
    """The properties of a device from which kinship is computed."""

    name: str
    architecture: str
    num_sms: int

    @staticmethod
    def of(device: Device) -> Kin:
        """The kin of ``device``."""
        return Kin(device.name, device.architecture, device.num_sms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Operators as points: ``sizes`` are scaled coordinates [operator, axis], the rest numbers into vocabularies."""

    sizes: npt.NDArray[np.float32]
    names: Ints
    dtypes: Ints
    settings: Ints
    devices: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: npt.NDArray[Any]) -> Places:
        """Some of the points, by position or by mask."""
        return Places(**{name: getattr(self, name)[chosen] for name in Places.__slots__})


def covariance(law: Covariance, one: Places, other: Places, devices: Floats) -> Floats:
    """The covariances [of ``one``, of ``other``]; ``devices`` has the kinship of the devices that they number."""
    distance = np.zeros((len(one), len(other)), dtype=np.float32)
    for axis in range(one.sizes.shape[1]):
        distance += (one.sizes[:, axis, None] - other.sizes[None, :, axis]) ** 2
    near = law.spread**2 * np.exp(-np.sqrt(distance)) + law.bias**2
    for column, factor in (("names", law.names), ("dtypes", law.dtypes), ("settings", law.settings)):
        near *= np.where(getattr(one, column)[:, None] == getattr(other, column)[None], 1.0, factor)
    result: Floats = near * devices[one.devices[:, None], other.devices[None]] + law.common**2
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoints:
    """A fitted Gaussian process: the measured operators and the weight of each.

    ``kin`` are the devices that ``places`` number, ``vocabulary`` the names, dtypes and settings.
    """

    law: Covariance
    kin: tuple[Kin, ...]
    vocabulary: Mapping[str, Sequence[str]]
    places: Places
    weights: Floats
    mean: float

    def likeness(self, device: Device) -> Floats:
        """The kinship of ``device`` with each measured device."""
        own = Kin.of(device)
        return np.array([self.law.kinship(own, kin) for kin in self.kin])

    def __call__(
        self, sizes: npt.NDArray[np.float32], names: Sequence[str], *, dtype: str, setting: str, device: Device
    ) -> Floats:
        """Log of time over roofline of operators at ``sizes`` with ``names``."""
        row = self.likeness(device)[None]
        count = len(sizes)
        asked = Places(
            sizes=sizes,
            names=_numbers(names, self.vocabulary["name"]),
            dtypes=_numbers([dtype] * count, self.vocabulary["dtype"]),
            settings=_numbers([setting] * count, self.vocabulary["setting"]),
            devices=np.zeros(count, dtype=np.int64),
        )
        said = np.full(count, self.mean)
        for begin in range(0, count, _BLOCK):
            some = asked.take(np.arange(begin, min(count, begin + _BLOCK)))
            said[begin : begin + _BLOCK] += covariance(self.law, some, self.places, row) @ self.weights
        return said

    def card(self) -> dict[str, Any]:
        """What the card of a bundle says of the points."""
        return {"law": asdict(self.law), "devices": [[k.name, k.architecture, k.num_sms] for k in self.kin]}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that :meth:`from_arrays` reads."""
        codes = np.stack([self.places.names, self.places.dtypes, self.places.settings, self.places.devices], axis=1)
        return {
            "sizes": self.places.sizes,
            "codes": codes.astype(np.int16),
            "weights": self.weights,
            "mean": np.array([self.mean]),
        }

    @staticmethod
    def from_arrays(
        card: Mapping[str, Any], vocabulary: Mapping[str, Sequence[str]], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> MeasuredPoints:
        """The points of a cell of a bundle."""
        codes = arrays["codes"].astype(np.int64)
        columns = {name: codes[:, i] for i, name in enumerate(("names", "dtypes", "settings", "devices"))}
        return MeasuredPoints(
            law=Covariance(**card["law"]),
            kin=tuple(Kin(str(name), str(architecture), int(sms)) for name, architecture, sms in card["devices"]),
            vocabulary=vocabulary,
            places=Places(sizes=arrays["sizes"], **columns),
            weights=arrays["weights"],
            mean=float(arrays["mean"][0]),
        )


def _numbers(texts: Sequence[str], vocabulary: Sequence[str]) -> Ints:
    """Each text as its number in ``vocabulary``; −1 if it is not there, which equals no other."""
    places = {text: i for i, text in enumerate(vocabulary)}
    return np.array([places.get(text, -1) for text in texts], dtype=np.int64)
