"""The public surface: what ``traincast`` offers, and that it is all there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import traincast

PACKAGES = ["cluster", "estimate", "graph", "graph.zoo", "report", "scheduling", "simulate", "strategy"]

PUBLIC = {
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
    assert set(traincast._HOMES) == set(traincast.__all__) - {"__version__"}


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
