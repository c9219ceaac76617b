"""Bundles of inspectors: a trained network with its grouping, as a folder with a card and weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError, RequestError
from traincast.estimate.bundle import SHIPPED, load_bundle, save_bundle
from traincast.estimate.inspector.amounts import Floats
from traincast.estimate.inspector.evaluate import OUTPUTS, InspectorShape, Standard, TrainedInspector
from traincast.estimate.inspector.features import (
    FEATURES_VERSION,
    GROUP_FEATURES,
    SETTING_FEATURES,
    StepSetting,
    inputs_of,
)
from traincast.estimate.inspector.grouping import Grouping
from traincast.estimate.inspector.targets import TARGETS, TargetScale, use_from
from traincast.estimate.resource_use import ResourceUse
from traincast.graph import OperatorGraph

KIND: Final = "resources"
_SEEN_S: Final = 5.0
"""Seconds for which a resource without bursts is said to be busy or idle: an observation of usual length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InspectorModel:
    """A trained inspector with everything that it needs to judge a graph in a setting.

    ``types`` are the weights of the types of operators, ``settings`` the names of the settings that it was trained in,
    ``scores`` its errors on runs that it was not trained on, in %, by resource. Nine of ten of those runs lie within
    the factors ``spread`` [12] of the predicted figures.
    """

    network: TrainedInspector
    grouping: Grouping
    types: Mapping[str, float]
    spread: Floats
    settings: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)

    def uses(
        self, graph: OperatorGraph, setting: StepSetting
    ) -> tuple[dict[str, ResourceUse], dict[str, ResourceUse], dict[str, ResourceUse]]:
        """Return the predicted use of each resource, and the low and the high end of the interval of each figure."""
        inputs = inputs_of(graph, setting, grouping=self.grouping, weights=self.types)
        values, pattern = self.network(inputs)
        high = values * self.spread
        high[::3] = np.minimum(high[::3], 1.0)
        expected, least, most = (use_from(v, pattern, seen_s=_SEEN_S) for v in (values, values / self.spread, high))
        return expected, least, most

    def warnings(self, graph: OperatorGraph, setting: StepSetting) -> tuple[str, ...]:
        """Say which figures of a setting lie far outside the runs that the network was trained on."""
        inputs = inputs_of(graph, setting, grouping=self.grouping, weights=self.types)
        standard = self.network.standard
        distance = np.abs((inputs.setting - standard.setting_mean) / standard.setting_size)
        far = [name for name, value in zip(SETTING_FEATURES, distance.tolist(), strict=True) if value > 4.0]
        if not far:
            return ()
        return (f"the inspector was trained on no run like this one: {', '.join(far)} lie outside its data",)


def save_inspector(path: Path, model: InspectorModel, *, data: Mapping[str, Any]) -> None:
    """Write ``model`` to the folder ``path``; ``data`` says what it was fitted to."""
    network = model.network
    card = {
        "kind": KIND,
        "features": FEATURES_VERSION,
        "shape": asdict(network.shape),
        "members": len(network.members),
        "grouping": asdict(model.grouping),
        "scaling": network.scale.method,
        "types": dict(model.types),
        "settings": list(model.settings),
        "spread": [round(float(value), 4) for value in model.spread],
        "scores": {name: round(value, 3) for name, value in model.scores.items()},
        "data": dict(data),
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        f"{_prefix(number)}{name}": value
        for number, weights in enumerate(network.members)
        for name, value in weights.items()
    }
    arrays |= {f"standard.{name}": getattr(network.standard, name) for name in Standard.__slots__}
    arrays |= {"scale.shift": network.scale.shift, "scale.size": network.scale.size}
    save_bundle(path, card, arrays)


def inspector_path(name: str | os.PathLike[str]) -> Path:
    """Return the folder of an inspector; the name ``shipped`` means the one that comes with Traincast."""
    return SHIPPED / KIND if str(name) == "shipped" else Path(name)


def load_inspector(path: Path) -> InspectorModel:
    """Return the inspector in the folder ``path``; raises ``FileFormatError`` if it does not match this version."""
    bundle = load_bundle(path)
    card = bundle.card
    if card["kind"] != KIND:
        raise RequestError(
            f"{path} is a bundle of {card['kind']}: expected an inspector, which `traincast fit resources` writes"
        )
    if card["features"] != FEATURES_VERSION:
        raise FileFormatError(
            f"{path} was fitted to features {card['features']!r}, and this version computes {FEATURES_VERSION}: fit it "
            "again"
        )
    if len(card["spread"]) != len(TARGETS):
        raise FileFormatError(f"{path} is damaged: spread has {len(card['spread'])} figures, not {len(TARGETS)}")
    try:
        shape, grouping = InspectorShape(**card["shape"]), Grouping(**card["grouping"])
    except (TypeError, RequestError) as error:
        raise FileFormatError(f"{path} is damaged: {error}; fit the bundle again") from None
    arrays, members = bundle.arrays(), int(card.get("members", 1))
    _check_arrays(path, expected_sizes(shape, members), shape, arrays)
    weights, *more = (
        {name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)}
        for start in map(_prefix, range(max(1, members)))
    )
    network = TrainedInspector(
        shape=shape,
        weights=weights,
        more=tuple(more),
        standard=Standard(**{name: arrays[f"standard.{name}"] for name in Standard.__slots__}),
        scale=TargetScale(method=card["scaling"], shift=arrays["scale.shift"], size=arrays["scale.size"]),
    )
    return InspectorModel(
        network=network,
        grouping=grouping,
        types=card["types"],
        spread=np.array(card["spread"]),
        settings=tuple(card["settings"]),
        scores=card["scores"],
    )


def _prefix(member: int) -> str:
    """How the names of the weights of a member begin."""
    return f"network{member + 1}." if member else "network."


def _check_arrays(
    path: Path, expected: Mapping[str, tuple[int, ...]], shape: InspectorShape, arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Refuse weights whose names or sizes differ from those that are expected."""
    wrong = [name for name, size in expected.items() if name not in arrays or arrays[name].shape != size]
    wrong += [name for name in arrays if name not in expected]
    if shape.features != len(GROUP_FEATURES) or shape.setting != len(SETTING_FEATURES):
        wrong.append("shape")
    if wrong:
        raise FileFormatError(f"{path} does not match its card: {wrong[0]} is missing, unknown or of another size")


def expected_sizes(shape: InspectorShape, members: int = 1) -> dict[str, tuple[int, ...]]:
    """Return the size of every array of a bundle with ``members`` networks of ``shape``."""
    hidden, gated = shape.hidden, shape.layer == "gru"
    sizes: dict[str, tuple[int, ...]] = {}
    inputs = {"first": shape.features + shape.setting, "repeated": hidden} | ({"late": hidden} if shape.late else {})
    for name, width in inputs.items():
        sizes |= {f"{name}.linear.weight": (hidden, width), f"{name}.linear.bias": (hidden,)}
        if gated:
            sizes |= {f"{name}.gate.weight_{side}": (3 * hidden, hidden) for side in ("ih", "hh")}
            sizes |= {f"{name}.gate.bias_{side}": (3 * hidden,) for side in ("ih", "hh")}
    read = hidden
    if shape.read_out == "set2set":
        read = 2 * hidden
        sizes |= {"look.weight_ih": (4 * hidden, 2 * hidden), "look.weight_hh": (4 * hidden, hidden)}
        sizes |= {f"look.bias_{side}": (4 * hidden,) for side in ("ih", "hh")}
    for number, (inner, outer) in enumerate(((read + shape.setting, hidden), (hidden, hidden), (hidden, OUTPUTS))):
        sizes |= {f"head.{2 * number}.weight": (outer, inner), f"head.{2 * number}.bias": (outer,)}
    named = {f"{_prefix(member)}{name}": size for member in range(members) for name, size in sizes.items()}
    named |= {f"standard.group_{name}": (shape.features,) for name in ("mean", "size")}
    named |= {f"standard.setting_{name}": (shape.setting,) for name in ("mean", "size")}
    return named | {"scale.shift": (len(TARGETS),), "scale.size": (len(TARGETS),)}
