"""Reports on a simulated step: breakdowns, critical paths, traces and pages."""

from traincast.report.assemble import make_report
from traincast.report.breakdown import Breakdown
from traincast.report.critical_path import PathEntry
from traincast.report.job import JobForecast
from traincast.report.page import write_page
from traincast.report.report import RankReport, Report
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
