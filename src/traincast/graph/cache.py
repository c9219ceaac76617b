"""A cache of captured graphs on disk. The key is a digest of the request and of the capturing code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from traincast.errors import FileFormatError
from traincast.files import make_folder
from traincast.graph.files import load_graph, save_graph
from traincast.graph.operator import OperatorGraph


def cache_directory() -> Path:
    """The folder of the cache: ``TRAINCAST_CACHE``, or ``traincast`` in the user's cache folder."""
    chosen = os.environ.get("TRAINCAST_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "traincast"


CAPTURING: Final = (
    "assemble", "aten", "capture", "files", "fixed", "operator", "recorder", "recurrent", "repeats", "scan_amount",
    "tensor", "tracing", "work_amount",
)  # fmt: skip
"""The modules of ``traincast.graph`` that determine a captured graph, besides the zoo: all that ``capture`` imports."""


@cache
def code_digest(reader: str = "zoo") -> bytes:
    """A digest of the code that determines captured graphs.

    ``reader`` is the folder below ``traincast.graph`` of what builds the modules, or the beginning of its files' names.
    """
    digest = hashlib.sha256()
    root = resources.files("traincast.graph")
    folder = root.joinpath(reader)
    entries = folder.iterdir() if folder.is_dir() else (e for e in root.iterdir() if e.name.startswith(reader))
    built = (entry for entry in entries if entry.name.endswith(".py"))
    for entry in (*(root.joinpath(f"{name}.py") for name in CAPTURING), *sorted(built, key=lambda e: e.name)):
        digest.update(entry.read_bytes())
    return digest.digest()


def cache_key(content: Mapping[str, object], *, reader: str = "zoo") -> str:
    """The name of the file that holds the graph of ``content``; ``reader`` is that of :func:`code_digest`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(code_digest(reader) + text.encode()).hexdigest()[:32]


def cached(key: str) -> OperatorGraph | None:
    """Returns the graph stored under ``key``, or ``None`` if there is none or it is damaged."""
    path = cache_directory() / f"{key}.json"
    if not path.exists():
        return None
    try:
        return load_graph(path)
    except FileFormatError:
        return None


def keep(key: str, graph: OperatorGraph) -> None:
    """Store ``graph`` for later runs. If the folder cannot be written, nothing is stored and later runs trace again."""
    try:
        make_folder(cache_directory())
        save_graph(graph, cache_directory() / f"{key}.json")
    except FileFormatError:
        return
