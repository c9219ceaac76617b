"""Tables of what a step draws: the twelve figures, and each curve over one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.cli.output import console, plain, print_table
from traincast.files import write_text
from traincast.units import format_seconds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from traincast.estimate.resource_use import ResourceUse
    from traincast.forecast import Forecast
    from traincast.report import Report
    from traincast.resources.curves import Curves
    from traincast.resources.forecasting import ResourceForecast

_WIDTH: Final = 64
_OPERATORS: Final = 12
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_FIGURES: Final = {"burst_amount": "amount", "burst_s": "burst", "idle_s": "pause"}
_REFUSED: Final = "–"
_MEANINGS: Final = {
    "compute": "time in which a kernel runs",
    "flops": "of the peak FLOP rate",
    "memory": "of the memory's bandwidth",
    "receive": "of {links}",
    "send": "of {links}",
    "host": "of the link between device and host",
    "memory_held": "of the device's memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a forecast draws: its figures, and the ``exact`` curves of one step."""

    forecast: ResourceForecast
    exact: Curves

    def to_dict(self) -> dict[str, Any]:
        """Return what the JSON of a forecast gets."""
        return {"resources": self.forecast.to_dict(), "resources_by": "timeline"}

    def page_data(self) -> dict[str, Any]:
        """Return the data of a page's curves."""
        from traincast.resources.forecasting import page_data

        return page_data(self.forecast, self.exact)

    def write_csv(self, path: Path) -> None:
        """Write the sampled curves of all ranks and nodes."""
        from traincast.resources.forecasting import curves_csv

        write_text(path, curves_csv(self.forecast.curves))


def drawn_by(result: Forecast, hz: float | None) -> Drawn:
    """Return what ``result`` draws, sampled ``hz`` times per second; 0 samples finely."""
    from traincast.resources.ask import HZ
    from traincast.resources.forecasting import forecast_curves, resources_of

    made = resources_of(result, hz=HZ if hz is None else hz or None)
    return Drawn(forecast=made, exact=forecast_curves(result, hz=None))


def show_drawn(result: Forecast, drawn: Drawn | None) -> None:
    """Print what bounds operators, what the step draws, and when; print nothing if it was not asked for."""
    if drawn is not None:
        show_operators(result.report)
        show_resources(drawn.forecast, drawn.exact)


def show_resources(made: ResourceForecast, exact: Curves) -> None:
    """Print the figures of ``made`` with their intervals, and the ``exact`` curves of one step."""
    sampled = f"{made.hz:g} samples per second" if made.hz else "one step, finely sampled"
    show_uses(f"resources as a monitor on node 0 sees them, {sampled}", made.uses, low=made.low, high=made.high)
    show_curves(exact)


def show_uses(
    title: str, uses: Mapping[str, ResourceUse], *, low: Mapping[str, ResourceUse], high: Mapping[str, ResourceUse]
) -> None:
    """Print the figures of each resource, with the ends of their intervals."""
    rows = []
    for name, use in uses.items():
        least, most = low[name], high[name]
        rows.append(
            (
                name,
                use.pattern,
                share_text(use.burst_amount),
                _interval(share_text(least.burst_amount), share_text(most.burst_amount)),
                _lasts(use)[0],
                _interval(_lasts(least)[0], _lasts(most)[0]),
                _lasts(use)[1],
                _interval(_lasts(least)[1], _lasts(most)[1]),
            )
        )
    columns = ("resource", "pattern", "amount", "interval", "burst", "interval", "pause", "interval")
    print_table(title, columns, rows, right=range(2, 8))
    show_refused({name: use.refused for name, use in uses.items()})


def show_refused(refused: Mapping[str, Mapping[str, str]]) -> None:
    """Print why figures are refused, by resource and figure: one line for each reason."""
    whose: dict[str, list[str]] = {}
    for name, reasons in refused.items():
        for figure, reason in reasons.items():
            whose.setdefault(reason, []).append(f"{name} {_FIGURES[figure]}")
    for reason, figures in whose.items():
        console().print(f"refused: {', '.join(figures)} ({plain(reason)})", highlight=False)


def _interval(low: str, high: str) -> str:
    return f"{low} … {high}" if low != high else ""


def show_curves(exact: Curves) -> None:
    """Print every curve of one step on the node of the first rank as a row of bars."""
    links = "its node's NICs" if exact.network.leaves_node else "its links inside the node"
    out = console()
    out.print(f"[bold]one step of rank {exact.ranks[0]}[/bold], {format_seconds(exact.step_s)}", highlight=False)
    for name, values in exact.of_node_of(int(exact.ranks[0])).items():
        bar, mean = _bars(values), float(values.mean())
        out.print(f"{name:<12}{bar}  {mean:>6.1%} {_MEANINGS[name].format(links=links)}", highlight=False)


def show_operators(report: Report) -> None:
    """Print the operators that take longest, each with what bounds it."""
    rows = [
        (
            op.label,
            format_seconds(op.seconds),
            *(format_seconds(value) if value else "" for value in (op.computation_s, op.memory_access_s)),
            *(format_seconds(value) if value else "" for value in (op.communication_s, op.host_copies_s + op.host_s)),
        )
        for op in report.split.operators[:_OPERATORS]
    ]
    columns = ("operator", "time", "computation", "memory access", "communication", "host")
    print_table("time of operators by what bounds it", columns, rows, right=range(1, 6))


def amounts(use: ResourceUse) -> tuple[str, str, str, str]:
    """Return the pattern and the three figures of a resource as text."""
    return use.pattern, share_text(use.burst_amount), *_lasts(use)


def share_text(value: float | None) -> str:
    """Return an amount as text; a dash if it is refused."""
    return _REFUSED if value is None else f"{value:.1%}"


def length_text(value: float | None) -> str:
    """Return a duration as text; a dash if it is refused."""
    return _REFUSED if value is None else format_seconds(value)


def _lasts(use: ResourceUse) -> tuple[str, str]:
    """How long bursts and pauses last; those of a resource without a change between them have no length."""
    if use.pattern == "bursts":
        return length_text(use.burst_s), length_text(use.idle_s)
    return ("all the time", "none") if use.pattern == "busy" else ("none", "all the time")


def _bars(values: npt.NDArray[np.float64]) -> str:
    """The means of equal parts of a curve, each as one character."""
    parts = [part.mean() for part in _parts(values)]
    return "".join(_LEVELS[min(8, round(8 * min(1.0, level)) or int(level > 0.005))] for level in parts)


def _parts(values: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    import numpy as np

    return np.array_split(values, _WIDTH)
