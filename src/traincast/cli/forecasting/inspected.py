"""What an inspector predicts for a forecast: its figures as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.cli.output import console, plain
from traincast.cli.resources.tables import show_uses

if TYPE_CHECKING:
    from traincast.estimate.resource_use import ResourceUse
    from traincast.forecast import Forecast


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
    from traincast.estimate.inspector.bundle import inspector_path, load_inspector
    from traincast.resources.inspected import setting_of

    model = load_inspector(inspector_path(bundle))
    graph, setting = result.request.graph, setting_of(result.request)
    expected, low, high = model.uses(graph, setting)
    return Inspected(uses=expected, low=low, high=high, warnings=model.warnings(graph, setting), bundle=bundle)


def show_inspected(made: Inspected) -> None:
    """Print the figures with their intervals."""
    title = f"resources as the inspector in {plain(made.bundle)} predicts them"
    show_uses(title, made.uses, low=made.low, high=made.high)
    for warning in made.warnings:
        console(stderr=True).print(f"[yellow]warning[/yellow] {plain(warning)}", highlight=False, soft_wrap=True)
