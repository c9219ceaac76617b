"""Processor seconds of the main verbs at two commits, in one alternating run: a slip is seen before it lands.

``python -m benchmarks.slips BASE [--runs 3] [--long]`` compares the commit BASE with the working tree. They run
in turn on the same machine, so that its noise meets both; the best run of each counts. A ratio above 1.15 is marked,
and the exit code is then 1. ``--long`` adds the whole search of GPT-3 on 1,024 GPUs, some minutes at each commit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.timing import run, table

GPT3: Final = ("gpt3-175b", "--cluster", "dgx-a100:128", "--global-batch", "1536")
DEEPSEEK: Final = ("deepseek-v3", "--cluster", "dgx-h100:256", "--global-batch", "15360")
CASES: Final[dict[str, tuple[str, ...]]] = {
    "predict, one stage": (
        "predict", "llama3-8b", "--cluster", "dgx-h100:4", "--strategy", "dp=8,tp=4", "--global-batch", "256",
    ),
    "predict, eight stages": ("predict", *GPT3, "--strategy", "dp=16,tp=8,pp=8,micro_batch=1"),
    "predict, 64 stages": ("predict", *GPT3, "--strategy", "dp=2,tp=8,pp=64,micro_batch=1"),
    "predict, experts": ("predict", *DEEPSEEK, "--strategy", "dp=128,pp=16,ep=64,zero=1,micro_batch=1"),
    "search, 16 GPUs": ("search", "llama3-8b", "--cluster", "dgx-h100:2", "--global-batch", "128"),
    "search, 512 GPUs": (
        "search", "llama3-70b", "--cluster", "dgx-h100:64", "--global-batch", "512", "--constraint", "tp=8",
    ),
    "schedule": ("schedule", "examples/jobs.csv", "--nodes", "2x8", "--compare", "fifo,sjf,srtf,easy"),
}  # fmt: skip
"""Commands by name; each prints JSON."""
LONG: Final = {"search, 1,024 GPUs": ("search", *GPT3, "--constraint", "tp=8", "--searcher", "exhaustive")}
SLOWER: Final = 1.15
"""Ratio from which a case is marked; the noise of a busy machine is about a tenth."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all cases at both commits; return 1 if one has become slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each case; one more fills caches")
    parser.add_argument("--long", action="store_true", help="also the whole search of GPT-3 on 1,024 GPUs")
    asked = parser.parse_args(arguments)
    here = Path(__file__).resolve().parents[1]
    slips = 0
    with tempfile.TemporaryDirectory(prefix="traincast-slips-") as folder:
        there = Path(folder) / "base"
        _git(here, "worktree", "add", "--detach", str(there), asked.base)
        try:
            rows = []
            for name, words in (CASES | (LONG if asked.long else {})).items():
                before, after = _best(words, (there, here), runs=1 if name in LONG else asked.runs)
                slow = after > SLOWER * before
                slips += slow
                rows.append((name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}", "slower" if slow else ""))
        finally:
            _git(here, "worktree", "remove", "--force", str(there))
    table("processor seconds, the best run of each", ("command", asked.base[:12], "here", "ratio", ""), rows)
    return int(slips > 0)


def _best(words: Sequence[str], roots: Sequence[Path], *, runs: int) -> list[float]:
    """Return the least processor seconds of a command at each checkout; the checkouts take turns."""
    found: list[list[float]] = [[] for _ in roots]
    for _ in range(runs + 1):
        for root, costs in zip(roots, found, strict=True):
            costs.append(run([*words, "--json"], root=root).cpu_s)
    return [min(costs[1:]) for costs in found]


def _git(root: Path, *words: str) -> None:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {words[0]} {words[1]} failed: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
