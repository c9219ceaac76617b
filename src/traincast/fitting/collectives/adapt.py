"""Adapt the learned collectives to a system with a few measured points, ten lines of a log for instance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate.collectives.adapted import AdaptedSystem, link_of
from traincast.estimate.collectives.features import KINDS
from traincast.estimate.collectives.learned import FORMAT, CollectiveModel
from traincast.estimate.collectives.prior import CollectiveSetting, Points, SystemPrior, setting_of
from traincast.fitting.collectives.table import CollectiveTable

Weights: TypeAlias = dict[str, npt.NDArray[Any]]
Card: TypeAlias = dict[str, Any]

FEW: Final = 40
"""Up to this many configurations, a table adapts the shipped collectives instead of getting curves of its own."""
_NOTHING: Final = {
    **dict.fromkeys(
        ("curve_route", "curve_kind", "curve_condition", "curve_ranks", "curve_islands", "curve_sound"), "i4"
    ),
    "knot_log2_bytes": "f4",
    "knot_log_seconds": "f4",
}


def should_adapt(table: CollectiveTable, base: CollectiveModel | None) -> bool:
    """Whether a table is small, of one system with GPUs, and moved by a collective library."""
    if base is None or base.prior is None or not len(table) or len(set(table.key.tolist())) > FEW:
        return False
    hosts = any(table.routes[i].inside == "host" for i in set(table.route.tolist()))
    libraries = all(table.conditions[i].is_library for i in set(table.condition.tolist()))
    return not hosts and libraries and len(set(table.system.tolist())) == 1


def adapted_system(table: CollectiveTable, prior: SystemPrior, *, covers_all: bool = False) -> AdaptedSystem:
    """The system of a table, which may be empty; equal configurations become one point, the median of their times.

    With ``covers_all``, collectives over links without any point are estimated as well.
    """
    values: dict[tuple[CollectiveSetting, float], list[float]] = defaultdict(list)
    residual, size = np.log(table.seconds / table.baseline), np.log2(table.nbytes)
    columns = zip(*(c.tolist() for c in (table.kind, table.route, table.ranks, table.condition)), strict=True)
    for i, (kind, route, ranks, condition) in enumerate(columns):
        setting = setting_of(KINDS[kind], table.routes[route], ranks, table.conditions[condition])
        values[setting, float(size[i])].append(float(residual[i]))
    order = sorted(values, key=lambda key: (key[0].texts, key[0].log2_ranks, key[0].log2_rate, key[1]))
    settings = tuple(dict.fromkeys(setting for setting, _ in order))
    numbers = {setting: i for i, setting in enumerate(settings)}
    software = [table.conditions[i] for i in table.condition.tolist()]
    common = {"condition": max(set(software), key=lambda c: (not c.pattern, software.count(c), c))} if software else {}
    return AdaptedSystem(
        prior=prior,
        points=Points(
            settings=settings,
            setting=np.array([numbers[setting] for setting, _ in order], dtype=np.int64),
            log2_bytes=np.array([x for _, x in order], dtype=np.float64),
        ),
        residual=np.array([np.median(values[key]) for key in order], dtype=np.float64),
        links=None if covers_all else frozenset(link_of(table.routes[i]) for i in set(table.route.tolist())),
        **common,
    )


def adapt_collectives(table: CollectiveTable, base: CollectiveModel) -> tuple[Weights, Card]:
    """Adapt the learned collectives to all rows of a table; weights and card make a :class:`CollectiveModel`.

    The card's ``held_out`` are the errors on each point when the other points are known.
    """
    if base.prior is None:
        raise RequestError("the shipped collectives hold no prior of unmeasured systems: fit curves with --no-adapt")
    if not len(table):
        raise RequestError(f"there is no row to adapt to: all {len(table.problems)} rows have problems")
    systems = sorted(set(table.system.tolist()))
    if len(systems) > 1:
        raise RequestError(
            f"the table has {len(systems)} systems ({', '.join(systems[:3])}{', …' if len(systems) > 3 else ''}): "
            "adapt to one system at a time, or fit curves with --no-adapt"
        )
    system = adapted_system(table, base.prior)
    arrays, card = system.packed()
    prior_arrays, prior_card = base.prior.packed()
    nothing: Weights = {name: np.zeros(0, dtype=kind) for name, kind in _NOTHING.items()}
    weights = {**nothing, "curve_start": np.zeros(1, dtype=np.int32), **prior_arrays, **arrays}
    about = {"system": systems[0], "points": len(system.points), "says": described(table, len(system.points))}
    model = {
        "format": FORMAT,
        "kinds": list(KINDS),
        "routes": [],
        "conditions": [],
        "intervals": {},
        "prior": prior_card,
        "adapted": {**card, **about},
        "held_out": _left_out(system),
        "rows": len(table),
    }
    return weights, model


def described(table: CollectiveTable, points: int) -> str:
    """What the learned collectives were adapted to, as a sentence."""
    links = sorted({link_of(table.routes[i]) for i in set(table.route.tolist())})
    where = " and ".join(map(str, links))
    kinds = ", ".join(KINDS[i] for i in sorted(set(table.kind.tolist())))
    ranks = ", ".join(map(str, sorted(set(table.ranks.tolist()))))
    number = "1 point" if points == 1 else f"{points} points"
    return (
        f"adapted to {number} of {table.system[0]}: {kinds} of {table.nbytes.min():,.0f} to {table.nbytes.max():,.0f} "
        f"bytes among {ranks} ranks; other sizes, ranks and collectives {where} follow from other systems"
    )


def _left_out(system: AdaptedSystem) -> Mapping[str, float]:
    """The errors on each point when all others are known, in per cent."""
    missed = system.leave_one_out()
    error = 100.0 * np.abs(np.expm1(missed))
    return {
        "cells": len(error),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.quantile(error, 0.9)),
    }
