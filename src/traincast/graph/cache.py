"""Captured graphs kept between runs, by content: what was asked for, and the code that captures it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from traincast.errors import FileFormatError
from traincast.files import make_folder
from traincast.graph.files import load_graph, save_graph
from traincast.graph.operator import OperatorGraph


def cache_directory() -> Path:
    """``TRAINCAST_CACHE``, or ``traincast`` under the user's cache folder."""
    chosen = os.environ.get("TRAINCAST_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "traincast"


@cache
def code_digest() -> bytes:
    """A digest of the code that decides what a captured graph looks like."""
    digest = hashlib.sha256()
    root = resources.files("traincast.graph")
    for folder in (root, root.joinpath("zoo")):
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".py"):
                digest.update(entry.read_bytes())
    return digest.digest()


def cache_key(content: Mapping[str, object]) -> str:
    """The name under which the graph of ``content`` is kept."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(code_digest() + text.encode()).hexdigest()[:32]


def cached(key: str) -> OperatorGraph | None:
    """The graph kept under ``key``, if there is one and it is sound."""
    path = cache_directory() / f"{key}.json"
    if not path.exists():
        return None
    try:
        return load_graph(path)
    except FileFormatError:
        return None


def keep(key: str, graph: OperatorGraph) -> None:
    """Keep ``graph`` for the next run; a folder that cannot be written to only costs that run its speed."""
    try:
        make_folder(cache_directory())
        save_graph(graph, cache_directory() / f"{key}.json")
    except FileFormatError:
        return
