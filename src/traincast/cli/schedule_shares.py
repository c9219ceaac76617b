"""What sharing nodes gains: the same queue with exclusive nodes, shared blindly, and by complementary jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from traincast.cli.output import print_table
from traincast.units import format_seconds

if TYPE_CHECKING:
    from traincast.scheduling.schedule import Schedule

_FIGURES: Final = ("mean_jct_s", "mean_queue_s", "makespan_s", "utilization", "mean_slowdown")


def shares_data(by_share: Mapping[str, Schedule]) -> dict[str, Any]:
    """Return the figures of every way to share, for JSON; ``gain`` is by how much the mean JCT is below the first's."""
    if not by_share:
        return {}
    first = next(iter(by_share.values())).metrics.mean_jct_s
    return {
        "share": [
            {
                "share": name,
                "placement": run.outcome.placement,
                **{figure: getattr(run.metrics, figure) for figure in _FIGURES},
                "gain": 1.0 - run.metrics.mean_jct_s / first,
            }
            for name, run in by_share.items()
        ]
    }


def show_shares(by_share: Mapping[str, Schedule]) -> None:
    """Print one line for every way to share nodes, if there are several."""
    if len(by_share) < 2:
        return
    rows = [
        (
            entry["share"],
            format_seconds(entry["mean_jct_s"]),
            f"{entry['gain']:+.1%}",
            format_seconds(entry["mean_queue_s"]) if entry["mean_queue_s"] else "0 s",
            format_seconds(entry["makespan_s"]),
            f"{entry['utilization']:.1%}",
            f"{entry['mean_slowdown']:.3f}",
        )
        for entry in shares_data(by_share)["share"]
    ]
    columns = ("nodes", "JCT", "gain", "queue", "span", "used", "slowdown")
    print_table("what sharing nodes gains", columns, rows, right=range(1, 7))
