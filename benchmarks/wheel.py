"""``python -m benchmarks.wheel``: install a wheel of this repository into an empty environment and time a forecast.

pip fetches the few packages that a forecast needs; PyTorch is not among them. The cost is of the very first forecast
after the installation, then of the best of three more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import Cost, empty_cache, run

ROOT = Path(__file__).parents[1]
_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
_LLAMA = ["predict", "llama3-8b", "--cluster", "dgx-h100:4", "--strategy", "dp=8,tp=4", "--global-batch", "256"]


def build(folder: Path) -> Path:
    """Build a wheel from a copy of the sources, which stay as they are, and return its path below ``folder``."""
    source, made = folder / "source", folder / "wheel"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    made.mkdir()
    subprocess.run([sys.executable, "-c", _BUILD, str(made)], cwd=source, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    return wheel


def main() -> None:
    """Build, install, forecast."""
    os.environ.pop("PYTHONPATH", None)  # the installed package alone
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], check=True)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed in {time.perf_counter() - started:.0f} s")
        for when, cost in (("first", _forecast(python)), ("again", min(_forecast(python) for _ in range(3)))):
            print(f"predict llama3-8b without PyTorch, {when}: {cost[0]:.2f} s CPU, {cost[1]:.2f} s")


def _forecast(python: str) -> tuple[float, float]:
    cost: Cost = run(_LLAMA, cache=empty_cache(), python=python)
    return cost.cpu_s, cost.wall_s


if __name__ == "__main__":
    main()
