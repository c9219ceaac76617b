"""What an inspector predicts for a forecast: its figures as JSON and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traincast.cli.output import console, plain
from traincast.cli.resource_tables import show_uses

if TYPE_CHECKING:
    from traincast.forecast import Forecast
    from traincast.resources.bursts import ResourceUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The figures that an inspector predicts, the ends of their intervals, and what it warns of."""

    uses: dict[str, ResourceUse]
    low: dict[str, ResourceUse]
    high: dict[str, ResourceUse]
    warnings: tuple[str, ...]
    bundle: str

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        from traincast.resources.forecasting import uses_as_dict

        found = uses_as_dict(self.uses, low=self.low, high=self.high)
        return {"resources": found, "resources_by": self.bundle, "resources_warnings": list(self.warnings)}


def inspected_by(result: Forecast, bundle: str) -> Inspected:
    """Return what the inspector in the folder ``bundle`` predicts for the request of ``result``."""
    from traincast.resources.inspector.bundle import inspector_path, load_inspector

    model = load_inspector(inspector_path(bundle))
    expected, low, high = model.uses(result.request)
    return Inspected(uses=expected, low=low, high=high, warnings=model.warnings(result.request), bundle=bundle)


def show_inspected(made: Inspected) -> None:
    """Print the figures with their intervals."""
    title = f"resources as the inspector in {plain(made.bundle)} predicts them"
    show_uses(title, made.uses, low=made.low, high=made.high)
    for warning in made.warnings:
        console(stderr=True).print(f"[yellow]warning[/yellow] {plain(warning)}", highlight=False, soft_wrap=True)
