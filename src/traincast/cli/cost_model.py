"""The cost model that ``--events`` and ``--bundle`` ask for, and the inspector among the bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast.estimate import CostModel


def events_cost_model(events: str | None, bundles: Sequence[str]) -> CostModel | None:
    """Return the cost model of ``--events`` and ``--bundle``, or ``None`` for the default one."""
    from traincast.estimate import learned_cost_model

    learned = learned_cost_model([Path(path) for path in bundles]) if bundles or events else None
    if events is None or learned is None:
        return learned
    from traincast.estimate.events.model import EventsCostModel, read_events

    return EventsCostModel(read_events(events), learned)


def inspector_in(bundles: Sequence[str], *, wanted: bool) -> tuple[tuple[str, ...], str | None]:
    """Return the bundles of times, and the bundle of an inspector if there is one; refuses one that is not ``wanted``.

    ``shipped`` is the inspector that comes with Traincast. A path that is no bundle counts as one of times, and is
    refused when these are read.
    """
    from traincast.errors import FileFormatError, RequestError
    from traincast.estimate.bundle import kind_of_bundle

    times: list[str] = []
    inspectors: list[str] = []
    for path in bundles:
        try:
            kind = "resources" if path == "shipped" else kind_of_bundle(Path(path))
        except FileFormatError:
            kind = "unknown"
        (inspectors if kind == "resources" else times).append(path)
    if len(inspectors) > 1:
        raise RequestError(f"{' and '.join(inspectors[:2])} are both inspectors: give one")
    if inspectors and not wanted:
        raise RequestError(f"{inspectors[0]} is an inspector, which predicts resources: add --resources")
    return tuple(times), inspectors[0] if inspectors else None
