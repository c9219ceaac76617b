"""Outputs shown in the documents, made anew: every ``console`` fence holds a command and what it prints.

python -m benchmarks.outputs [FILE...]
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FENCE: Final = re.compile(r"^```console\n\$ (?P<command>[^\n]*(?:\\\n[^\n]*)*)\n(?P<output>.*?)^```$", re.M | re.S)


def main(arguments: list[str] | None = None) -> None:
    """Rewrite the outputs in the files given, or in README.md and docs/."""
    given = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    for path in given or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        fresh = FENCE.sub(_with_output, text)
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
        print(f"{'rewritten' if fresh != text else 'unchanged'}: {path}")


def _with_output(match: re.Match[str]) -> str:
    return f"```console\n$ {match['command']}\n{output_of(match['command'])}\n```"


def output_of(command: str) -> str:
    """What ``command``, a call of ``traincast``, prints to a file, without blanks at the ends of lines."""
    words = shlex.split(command)
    if words[:1] != ["traincast"]:
        raise ValueError(f"{command!r} is no call of traincast")
    run = subprocess.run(
        [sys.executable, "-m", "traincast", *words[1:]],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120"},
    )
    if run.returncode not in (0, 2):
        raise RuntimeError(f"{command!r} failed: {run.stderr.strip()}")
    return "\n".join(line.rstrip() for line in (run.stdout + run.stderr).splitlines()).strip("\n")


if __name__ == "__main__":
    main()
