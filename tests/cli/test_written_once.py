"""An option is written once, and words become a request in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import traincast

ROOT = Path(traincast.__file__).parent


def calls(path: Path) -> Iterator[str]:
    """The functions that a module calls, as it writes them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize(
    ("function", "home"),
    [
        ("click.option", "cli/derive.py"),
        ("click.argument", "cli/derive.py"),
        ("parse_strategy", "resolve.py"),
    ],
)
def test_a_function_is_called_by_one_module_alone(function: str, home: str) -> None:
    callers = {path for path in ROOT.rglob("*.py") if function in calls(path)}
    assert {str(path.relative_to(ROOT)) for path in callers} == {home}
