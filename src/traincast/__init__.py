"""Traincast forecasts distributed deep-learning training before anyone pays for it.

>>> from traincast import predict
>>> forecast = predict("llama3-8b", cluster="dgx-h100:4", strategy="dp=8,tp=4", global_batch=256)
>>> forecast.report.step_s  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from traincast.cluster import Cluster, Device, Link, load_cluster, load_device
    from traincast.errors import RequestError, StrategyError, TraincastError
    from traincast.forecast import Forecast, predict
    from traincast.graph import Operator, OperatorGraph, TensorSpec
    from traincast.graph.files import load_graph, save_graph
    from traincast.graph.load import load_model as capture
    from traincast.report import Report
    from traincast.scheduling.schedule import schedule
    from traincast.searching.search import search
    from traincast.strategy import Runtime, Strategy, load_runtime

_HOMES = {
    "Cluster": "traincast.cluster:Cluster",
    "Device": "traincast.cluster:Device",
    "Link": "traincast.cluster:Link",
    "load_cluster": "traincast.cluster:load_cluster",
    "load_device": "traincast.cluster:load_device",
    "RequestError": "traincast.errors:RequestError",
    "StrategyError": "traincast.errors:StrategyError",
    "TraincastError": "traincast.errors:TraincastError",
    "Forecast": "traincast.forecast:Forecast",
    "predict": "traincast.forecast:predict",
    "Operator": "traincast.graph:Operator",
    "OperatorGraph": "traincast.graph:OperatorGraph",
    "TensorSpec": "traincast.graph:TensorSpec",
    "load_graph": "traincast.graph.files:load_graph",
    "save_graph": "traincast.graph.files:save_graph",
    "capture": "traincast.graph.load:load_model",
    "Report": "traincast.report:Report",
    "schedule": "traincast.scheduling.schedule:schedule",
    "search": "traincast.searching.search:search",
    "Runtime": "traincast.strategy:Runtime",
    "Strategy": "traincast.strategy:Strategy",
    "load_runtime": "traincast.strategy:load_runtime",
}

__all__ = [
    "Cluster",
    "Device",
    "Forecast",
    "Link",
    "Operator",
    "OperatorGraph",
    "Report",
    "RequestError",
    "Runtime",
    "Strategy",
    "StrategyError",
    "TensorSpec",
    "TraincastError",
    "__version__",
    "capture",
    "load_cluster",
    "load_device",
    "load_graph",
    "load_runtime",
    "predict",
    "save_graph",
    "schedule",
    "search",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: ``import traincast`` itself stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    import importlib

    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value
