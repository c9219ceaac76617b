"""Loops that are compiled on first use: when Numba is loaded, what is compiled along, where the code is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traincast.compiled import Compiled

LOOP = """
from typing import Any
from parts import twice

def total(values: Any) -> float:
    found = 0.0
    for value in values:
        found += twice(value)
    return found
"""
PARTS = "def twice(value):\n    return {} * value\n"
RUN = """
import sys
import numpy as np
from traincast.compiled import Compiled
from loop import total
fast = Compiled(total)
assert "numba" not in sys.modules
print(fast(np.arange(4.0)), "numba" in sys.modules)
"""


def double(value: Any) -> Any:
    return 2.0 * value


def quadruple(value: Any) -> Any:
    return double(double(value))


def total(values: Any) -> float:
    found = 0.0
    for value in values:
        found += quadruple(value)
    return found


def run(folder: Path, script: str = RUN, **environment: str) -> str:
    """What a new process says that compiles ``total`` of ``loop.py`` in ``folder``."""
    paths = os.pathsep.join([str(folder), *(path for path in sys.path if path)])
    given = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | given, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    (tmp_path / "parts.py").write_text(PARTS.format("2.0"), encoding="utf-8")
    return tmp_path


def test_functions_that_a_loop_calls_are_compiled_with_it_and_stay_python() -> None:
    assert Compiled(total)(np.arange(4.0)) == total([0.0, 1.0, 2.0, 3.0]) == 24.0
    assert double(3.0) == 6.0


def test_small_inputs_run_as_python_until_the_code_is_there_or_wanted() -> None:
    used, wanted = Compiled(total, pays_from=200), Compiled(total, pays_from=200)
    assert [used.pays(9), used.pays(200)] == [False, True]
    used(np.arange(2.0))
    wanted.prefer()
    assert [used.pays(1), wanted.pays(1)] == [True, True]


@pytest.mark.long(guard="test_small_inputs_run_as_python_until_the_code_is_there_or_wanted")
def test_once_numba_is_loaded_smaller_inputs_run_compiled(folder: Path) -> None:
    ask = "fast.pays_from = 1000; print([fast.pays(size) for size in (49, 50, 1000)])"
    script = RUN.replace('assert "numba"', f'{ask}\nassert "numba"') + f"fast = Compiled(total)\n{ask}\n"
    assert run(folder, script) == "[False, False, True]\n12.0 True\n[False, True, True]\n"


def test_numba_is_loaded_by_the_first_call(folder: Path) -> None:
    assert run(folder) == "12.0 True\n"


def test_code_on_disk_is_compiled_anew_when_a_function_of_another_file_changes(folder: Path) -> None:
    assert run(folder) == "12.0 True\n"
    assert list(folder.rglob("*.nbc"))
    (folder / "parts.py").write_text(PARTS.format("3.0"), encoding="utf-8")
    assert run(folder) == "18.0 True\n"


def test_without_a_folder_that_can_be_written_the_code_is_not_kept(folder: Path) -> None:
    """A file stands where each folder would be made, which stops the owner and an administrator alike."""
    (folder / "__pycache__").write_text("", encoding="utf-8")
    (folder / "home").write_text("", encoding="utf-8")
    home = str(folder / "home")
    assert run(folder, HOME=home, XDG_CACHE_HOME=home) == "12.0 True\n"


@pytest.mark.long(guard="test_code_on_disk_is_compiled_anew_when_a_function_of_another_file_changes")
def test_a_damaged_copy_on_disk_is_not_used(folder: Path) -> None:
    assert run(folder) == "12.0 True\n"
    for kept in [*folder.rglob("*.nbi"), *folder.rglob("*.nbc")]:
        kept.write_bytes(b"")
    assert run(folder) == "12.0 True\n"
