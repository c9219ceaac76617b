"""Reports on a simulated step: breakdowns, critical paths, traces and pages."""

from typing import TYPE_CHECKING, Any

from traincast.report.assemble import make_report
from traincast.report.breakdown import Breakdown
from traincast.report.critical_path import PathEntry
from traincast.report.job import JobForecast
from traincast.report.report import RankReport, Report

if TYPE_CHECKING:
    from traincast.report.page import write_page
    from traincast.report.trace import write_trace, write_traces

__all__ = [
    "Breakdown",
    "JobForecast",
    "PathEntry",
    "RankReport",
    "Report",
    "make_report",
    "write_page",
    "write_trace",
    "write_traces",
]


def __getattr__(name: str) -> Any:
    """Import what writes files when it is first used: most reports are only shown."""
    if name == "write_page":
        from traincast.report.page import write_page

        return write_page
    if name in ("write_trace", "write_traces"):
        from traincast.report.trace import write_trace, write_traces

        return write_trace if name == "write_trace" else write_traces
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
