"""The cost model that ``--events`` and ``--bundle`` ask for."""

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
    from traincast.estimate.events import EventsCostModel, read_events

    return EventsCostModel(read_events(events), learned)
