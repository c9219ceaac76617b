"""Rewrites the outputs shown in the documents: every ``console`` fence holds a command and its output.

Numbers of things in the catalog stand between ``<!-- count:NAME -->`` and ``<!-- -->``, and are rewritten as well.

python -m benchmarks.outputs [--check] [FILE...]

With ``--check`` nothing is written. Fences whose command prints something else today are listed, and the exit code is 1
if there are any. The line in which a search reports its own speed may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FENCE: Final = re.compile(r"^```console\n\$ (?P<command>[^\n]*(?:\\\n[^\n]*)*)\n(?P<output>.*?)^```$", re.M | re.S)

SPEED: Final = re.compile(r"^[\d.,]+ \w+, [\d.,]+( [kM])? strategies per CPU second", re.M)
"""The line in which a search reports its speed, which depends on the machine."""

PROGRESS: Final = re.compile(r"^.+: [\d,]+( of [\d,]+)? done after \d+ s\n?", re.M)
"""A line in which a long command says how far it is; it depends on the machine and is not shown in documents."""

COUNT: Final = re.compile(r"<!-- count:(?P<name>[a-z-]+) -->(?P<shown>[^<]*)<!-- -->")
"""A number of things in the catalog, in the text of a document."""


def counts() -> dict[str, int]:
    """Return how many things of each kind there are, by the names that documents use."""
    from traincast.cluster import cluster_names, device_names, load_cluster, node_names
    from traincast.graph import zoo
    from traincast.scheduling.policies import POLICIES
    from traincast.scheduling.space.placement import PLACEMENTS
    from traincast.strategy import runtime_names
    from traincast.strategy.schedules import SCHEDULES

    fitted = [name for name in cluster_names() if load_cluster(name).calibration is not None]
    return {
        "models": len(zoo.names()),
        "names": len({*zoo.known_names()} - {*zoo.names()}),
        "devices": len(device_names()),
        "machines": len(node_names()) + len(cluster_names()) - len(fitted),
        "fitted": len(fitted),
        "runtimes": len(runtime_names()),
        "schedules": len(SCHEDULES),
        "policies": len(POLICIES),
        "placements": len(PLACEMENTS),
    }


def main(arguments: list[str] | None = None) -> None:
    """Rewrite or check the outputs in the given files; by default, in README.md and docs/."""
    given = sys.argv[1:] if arguments is None else arguments
    paths = [Path(name) for name in given if name != "--check"]
    paths = paths or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "--check" in given:
        stale = [line for path in paths for line in stale_outputs(path)]
        print("\n".join(stale) or "all outputs are up to date")
        sys.exit(1 if stale else 0)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        fresh = with_counts(FENCE.sub(_with_output, text))
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
        print(f"{'rewritten' if fresh != text else 'unchanged'}: {path}")


def stale_outputs(path: Path) -> list[str]:
    """Return a line for every fence of ``path`` whose command prints something else today."""
    found = []
    for match in FENCE.finditer(path.read_text(encoding="utf-8")):
        wrong = difference(match["output"], output_of(match["command"]))
        found += [f"{path}: `{match['command']}`: {wrong}"] if wrong else []
    return found


def with_counts(text: str) -> str:
    """Return the text of a document with the counts of today."""
    found = counts() if COUNT.search(text) else {}
    return COUNT.sub(lambda match: f"<!-- count:{match['name']} -->{found[match['name']]}<!-- -->", text)


def difference(shown: str, printed: str) -> str:
    """Describe the first line that differs between the shown and the printed output; return "" if none does."""
    for old, new in zip_longest(_settled(shown), _settled(printed), fillvalue="nothing"):
        if old != new:
            return f"the document shows {old.strip()!r}, the command prints {new.strip()!r}"
    return ""


def _settled(text: str) -> list[str]:
    """Split an output into lines, without the reported speed, trailing blanks and empty lines at both ends."""
    return "\n".join(line.rstrip() for line in SPEED.sub("", text).splitlines()).strip("\n").splitlines()


def _with_output(match: re.Match[str]) -> str:
    return f"```console\n$ {match['command']}\n{output_of(match['command'])}\n```"


def output_of(command: str) -> str:
    """Run ``command``, a call of ``traincast``; return its output without lines of progress and trailing blanks."""
    words = shlex.split(command)
    if words[:1] != ["traincast"]:
        raise ValueError(f"{command!r} does not call traincast")
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
    printed = PROGRESS.sub("", run.stdout + run.stderr)
    return "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")


if __name__ == "__main__":
    main()
