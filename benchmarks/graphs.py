"""``python -m benchmarks.graphs``: capture every model of the zoo and write the graphs that ship with the package.

If only comments, imports or the places of definitions have changed since, nothing is captured: the index is stamped.
``--check`` captures every model and compares instead; it ends with 1 if a graph differs, and stamps the index if none
does, so that code which says the same in other words keeps the graphs.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import traincast
from traincast.graph import zoo
from traincast.graph.shipped import FOLDER, index, shipped_graph, stamp, write_shipped
from traincast.graph.traced import capture_of_zoo

PLACE = Path(traincast.__file__).parent / "graph" / "zoo" / FOLDER


def main(arguments: list[str]) -> int:
    """Write the shipped graphs, or compare them with fresh captures."""
    import torch

    if "--check" in arguments:
        stamp(PLACE)  # graphs of other code would not be read
        wrong = [name for name in zoo.names() if not is_current(name)]
        print(f"{len(zoo.names())} models captured; " + (f"differ: {', '.join(wrong)}" if wrong else "all are equal"))
        return 1 if wrong else 0
    if not index().is_stale:
        stamp(PLACE)
        print("the code that captures says what it said: no graph was made anew")
        return 0
    write_shipped(PLACE, capture_of_zoo, torch=torch.__version__.partition("+")[0])
    sizes = [path.stat().st_size for path in PLACE.iterdir()]
    print(f"{len(zoo.names())} models, {len(sizes)} files, {sum(sizes) / 1e3:.0f} kB in {PLACE}")
    return 0


def is_current(name: str) -> bool:
    """Whether the shipped graph of ``name`` is what a capture gives now."""
    card = zoo.card(name)
    found = shipped_graph(card.family, card.parameters)
    return found is not None and replace(found, name=name) == capture_of_zoo(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
