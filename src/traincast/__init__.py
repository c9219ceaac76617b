"""Traincast forecasts distributed deep-learning training before anyone pays for it.

Every verb of the command line is a function of this package: ``predict``, ``search``, ``schedule``, ``calibrate``,
``validate``, ``profile``, ``monitor``, ``fit`` and ``capture``; ``next`` is ``next_measurements``. Verbs of groups are
``trace.show`` and so on, ``run_testbed``, ``compare_testbed``, ``study_testbed``, ``whatif_resources``,
``compare_resources`` and ``simulate_resources``. The types that they take and return can be imported from here, too;
``dir(traincast)`` lists all of them. Nothing is imported before it is used.

>>> from traincast import predict
>>> forecast = predict("llama3-8b", cluster="dgx-h100:4", strategy="dp=8,tp=4", global_batch=256)
>>> forecast.report.step_s  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from traincast.ask import Ask, Conditions, JobSettings
    from traincast.calibrating.calibrate import CalibratedCluster, calibrate
    from traincast.cli.resources.monitored import MonitoredRun, monitor
    from traincast.cli.resources.real_runs import ComparedRun, compare_resources
    from traincast.cluster import Calibration, Cluster, Device, Link, load_cluster, load_device
    from traincast.engines import Engine, load_engine
    from traincast.errors import (
        CaptureError,
        FileFormatError,
        MissingDependencyError,
        RequestError,
        SimulationError,
        StrategyError,
        TraincastError,
        UnknownNameError,
    )
    from traincast.estimate import AnalyticalCostModel, CostModel, Estimates, LearnedCostModel, learned_cost_model
    from traincast.estimate.resource_use import ResourceUse
    from traincast.fitting.fit import Fit, fit
    from traincast.fitting.inspector.make import MadeRuns, simulate_resources
    from traincast.forecast import Forecast, predict
    from traincast.graph import Operator, OperatorGraph, TensorSpec
    from traincast.graph.files import load_graph, save_graph
    from traincast.graph.load import load_model as capture
    from traincast.profiling.collectives.cases import CollectiveRequest
    from traincast.profiling.monitor.sample import Monitored
    from traincast.profiling.operators.ask import OperatorRequest
    from traincast.profiling.output import Profile
    from traincast.profiling.profile import profile
    from traincast.report import JobForecast, Report
    from traincast.resources.forecasting import ResourceForecast, resources_of
    from traincast.resources.whatif import WhatIf, whatif_resources
    from traincast.scheduling import (
        Costs,
        FailureEvent,
        FailureLaw,
        Failures,
        Job,
        Metrics,
        Placement,
        Policy,
        SharedCluster,
    )
    from traincast.scheduling.joblogs.read import JobLog
    from traincast.scheduling.schedule import Schedule, schedule
    from traincast.searching.answer import Answer, Candidate
    from traincast.searching.measurements import Advice, Measurement, next_measurements
    from traincast.searching.search import search
    from traincast.simulate import Timeline
    from traincast.strategy import Request, Runtime, Strategy, load_runtime
    from traincast.testbed.compare import compare_testbed
    from traincast.testbed.folder import RunFolder
    from traincast.testbed.outcome import Comparison as RunComparison
    from traincast.testbed.run import run_testbed
    from traincast.testbed.study.outcome import Study as RunStudy
    from traincast.testbed.study.study import study_testbed
    from traincast.traces.diff import TraceDiff
    from traincast.traces.learn import LearnedEvents
    from traincast.traces.replay import ReplayReport
    from traincast.traces.show import TraceSummary
    from traincast.traces.verbs import trace
    from traincast.traces.whatif import WhatIfAnswer
    from traincast.validating.operators import OperatorValidation
    from traincast.validating.outcome import RowValidation, Validation
    from traincast.validating.validate import validate

_HOMES = {
    "traincast.ask": "Ask Conditions JobSettings",
    "traincast.calibrating.calibrate": "CalibratedCluster calibrate",
    "traincast.cli.resources.monitored": "MonitoredRun monitor",
    "traincast.cli.resources.real_runs": "ComparedRun compare_resources",
    "traincast.cluster": "Calibration Cluster Device Link load_cluster load_device",
    "traincast.engines": "Engine load_engine",
    "traincast.errors": "CaptureError FileFormatError MissingDependencyError RequestError SimulationError "
    "StrategyError TraincastError UnknownNameError",
    "traincast.estimate": "AnalyticalCostModel CostModel Estimates LearnedCostModel learned_cost_model",
    "traincast.fitting.fit": "Fit fit",
    "traincast.forecast": "Forecast predict",
    "traincast.graph": "Operator OperatorGraph TensorSpec",
    "traincast.graph.files": "load_graph save_graph",
    "traincast.graph.load": "capture",
    "traincast.profiling.collectives.cases": "CollectiveRequest",
    "traincast.profiling.operators.ask": "OperatorRequest",
    "traincast.profiling.output": "Profile",
    "traincast.profiling.monitor.sample": "Monitored",
    "traincast.profiling.profile": "profile",
    "traincast.report": "JobForecast Report",
    "traincast.estimate.resource_use": "ResourceUse",
    "traincast.resources.forecasting": "ResourceForecast resources_of",
    "traincast.fitting.inspector.make": "MadeRuns simulate_resources",
    "traincast.resources.whatif": "WhatIf whatif_resources",
    "traincast.scheduling": "Costs FailureEvent FailureLaw Failures Job Metrics Placement Policy SharedCluster",
    "traincast.scheduling.schedule": "Schedule schedule",
    "traincast.scheduling.joblogs.read": "JobLog",
    "traincast.searching.answer": "Answer Candidate",
    "traincast.searching.measurements": "Advice Measurement next_measurements",
    "traincast.searching.search": "search",
    "traincast.simulate": "Timeline",
    "traincast.strategy": "Request Runtime Strategy load_runtime",
    "traincast.testbed.compare": "compare_testbed",
    "traincast.testbed.folder": "RunFolder",
    "traincast.testbed.outcome": "RunComparison",
    "traincast.testbed.run": "run_testbed",
    "traincast.testbed.study.outcome": "RunStudy",
    "traincast.testbed.study.study": "study_testbed",
    "traincast.traces.diff": "TraceDiff",
    "traincast.traces.learn": "LearnedEvents",
    "traincast.traces.replay": "ReplayReport",
    "traincast.traces.show": "TraceSummary",
    "traincast.traces.verbs": "trace",
    "traincast.traces.whatif": "WhatIfAnswer",
    "traincast.validating.operators": "OperatorValidation",
    "traincast.validating.outcome": "RowValidation Validation",
    "traincast.validating.validate": "validate",
}
"""The public names of each module."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}
_RENAMED = {"RunComparison": "Comparison", "RunStudy": "Study", "capture": "load_model"}
"""Public names that their module calls otherwise."""

__all__ = [
    "Advice",
    "AnalyticalCostModel",
    "Answer",
    "Ask",
    "CalibratedCluster",
    "Calibration",
    "Candidate",
    "CaptureError",
    "Cluster",
    "CollectiveRequest",
    "ComparedRun",
    "Conditions",
    "CostModel",
    "Costs",
    "Device",
    "Engine",
    "Estimates",
    "FailureEvent",
    "FailureLaw",
    "Failures",
    "FileFormatError",
    "Fit",
    "Forecast",
    "Job",
    "JobForecast",
    "JobLog",
    "JobSettings",
    "LearnedCostModel",
    "LearnedEvents",
    "Link",
    "MadeRuns",
    "Measurement",
    "Metrics",
    "MissingDependencyError",
    "Monitored",
    "MonitoredRun",
    "Operator",
    "OperatorGraph",
    "OperatorRequest",
    "OperatorValidation",
    "Placement",
    "Policy",
    "Profile",
    "ReplayReport",
    "Report",
    "Request",
    "RequestError",
    "ResourceForecast",
    "ResourceUse",
    "RowValidation",
    "RunComparison",
    "RunFolder",
    "RunStudy",
    "Runtime",
    "Schedule",
    "SharedCluster",
    "SimulationError",
    "Strategy",
    "StrategyError",
    "TensorSpec",
    "Timeline",
    "TraceDiff",
    "TraceSummary",
    "TraincastError",
    "UnknownNameError",
    "Validation",
    "WhatIf",
    "WhatIfAnswer",
    "__version__",
    "calibrate",
    "capture",
    "compare_resources",
    "compare_testbed",
    "fit",
    "learned_cost_model",
    "load_cluster",
    "load_device",
    "load_engine",
    "load_graph",
    "load_runtime",
    "monitor",
    "next_measurements",
    "predict",
    "profile",
    "resources_of",
    "run_testbed",
    "save_graph",
    "schedule",
    "search",
    "simulate_resources",
    "study_testbed",
    "trace",
    "validate",
    "whatif_resources",
]


def __dir__() -> list[str]:
    """List the public names, and nothing else."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import traincast`` itself stays instant."""
    if name not in _MODULES:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_MODULES[name]), _RENAMED.get(name, name))
    globals()[name] = value
    return value
