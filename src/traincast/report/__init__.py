"""What it means: reports, breakdowns, critical paths, traces and pages."""

from traincast.report.breakdown import Breakdown
from traincast.report.critical_path import PathEntry
from traincast.report.job import JobForecast, JobSettings
from traincast.report.report import RankReport, Report, make_report

__all__ = ["Breakdown", "JobForecast", "JobSettings", "PathEntry", "RankReport", "Report", "make_report"]
