"""The public surface: what ``traincast`` offers, and that it is all there."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import traincast
from traincast.cli.main import VERBS as CLI_VERBS

PACKAGES = ["cluster", "estimate", "graph", "graph.zoo", "report", "scheduling", "simulate", "strategy"]

PUBLIC = {
    "Answer",
    "CalibratedCluster",
    "Calibration",
    "Cluster",
    "CollectiveRequest",
    "Conditions",
    "CostModel",
    "Costs",
    "Device",
    "Engine",
    "FailureLaw",
    "Failures",
    "Fit",
    "Forecast",
    "Job",
    "JobSettings",
    "LearnedEvents",
    "Link",
    "Operator",
    "OperatorGraph",
    "OperatorRequest",
    "OperatorValidation",
    "Placement",
    "Policy",
    "Profile",
    "ReplayReport",
    "Report",
    "RequestError",
    "RowValidation",
    "Runtime",
    "Schedule",
    "SharedCluster",
    "Strategy",
    "StrategyError",
    "TensorSpec",
    "Timeline",
    "JobLog",
    "TraceDiff",
    "TraceSummary",
    "TraincastError",
    "Validation",
    "WhatIfAnswer",
    "__version__",
    "calibrate",
    "capture",
    "fit",
    "load_cluster",
    "load_device",
    "load_engine",
    "load_graph",
    "load_runtime",
    "predict",
    "profile",
    "save_graph",
    "schedule",
    "search",
    "trace",
    "validate",
}
"""Names that users may rely on: taking one away breaks someone, so it must fail here first."""


def test_nothing_public_has_gone() -> None:
    assert set(traincast.__all__) >= PUBLIC


def test_names_are_sorted_and_stand_once() -> None:
    assert len(set(traincast.__all__)) == len(traincast.__all__)
    assert list(traincast.__all__) == sorted(traincast.__all__)


@pytest.mark.parametrize("name", sorted(traincast.__all__))
def test_every_public_name_can_be_had_and_is_documented(name: str) -> None:
    value = getattr(traincast, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__.startswith("traincast.")


def test_lazy_names_are_the_public_ones() -> None:
    assert set(traincast._MODULES) == set(traincast.__all__) - {"__version__"}


def test_dir_shows_exactly_the_public_names() -> None:
    assert dir(traincast) == sorted(traincast.__all__)


VERBS = ("predict", "search", "schedule", "calibrate", "validate", "profile", "monitor", "fit", "capture")
"""Verbs of the command line that do something: each can be called."""


def test_every_verb_of_the_command_line_is_a_function_with_a_contract() -> None:
    catalogs = {"models", "clusters", "devices", "runtimes"}
    renamed = {"next"}  # `next_measurements`: Python has a function of that name
    groups = {"testbed", "resources", "trace"}  # an object or a package of that name has a function for each verb
    assert set(VERBS) == set(CLI_VERBS) - catalogs - groups - renamed
    assert callable(traincast.next_measurements)
    for verb in VERBS:
        function = getattr(traincast, verb)
        assert callable(function)
        assert inspect.signature(function).parameters
        assert len(str(function.__doc__).split()) > 20


def submodules() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(traincast.__path__) if not found.name.startswith("_")]


def test_no_submodule_has_the_name_of_a_public_function() -> None:
    assert "searching" in submodules()
    assert not set(submodules()) & set(traincast.__all__)


def test_a_verb_with_a_package_has_its_gerund() -> None:
    packages = set(submodules())
    gerunds = {"search": "searching", "schedule": "scheduling", "fit": "fitting", "profile": "profiling"}
    gerunds |= {"calibrate": "calibrating", "validate": "validating"}
    assert set(gerunds.values()) <= packages
    assert {name for name in packages if name.endswith("ing")} == set(gerunds.values())


@pytest.mark.long(but=1)
@pytest.mark.parametrize("backwards", [False, True])
def test_functions_stay_functions_whatever_is_imported_first(backwards: bool) -> None:
    order = sorted(submodules(), reverse=backwards)
    code = (
        "import importlib, inspect, traincast\n"
        f"for name in {order!r}: importlib.import_module(f'traincast.{{name}}')\n"
        f"print(any(inspect.ismodule(getattr(traincast, verb)) for verb in {VERBS!r}), dir(traincast) == "
        "sorted(traincast.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_import_loads_nothing_but_the_package() -> None:
    code = "import sys, traincast; dir(traincast); print([m for m in sys.modules if m.startswith('traincast')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['traincast']\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'traincast' has no attribute 'foresee'"):
        _ = traincast.foresee


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_it_offers(package: str) -> None:
    module = importlib.import_module(f"traincast.{package}")
    assert module.__doc__
    names = module.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)


def test_the_version_is_that_of_the_project() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert match is not None
    assert traincast.__version__ == match.group(1)


def test_types_are_shipped() -> None:
    assert (Path(traincast.__file__).parent / "py.typed").exists()
