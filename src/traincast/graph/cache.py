"""A cache of captured graphs on disk. The key is a digest of the request and of the capturing code."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
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


CAPTURING: Final = ("capture", "files", "operator", "optimizers", "scan_amount", "tensor", "vocabulary", "work_amount")
"""What determines a captured graph besides the code that builds its module: names below ``traincast.graph``."""


@cache
def source_digest(reader: str = "zoo") -> bytes:
    """A digest of the files that determine captured graphs; it changes with every letter of them.

    ``reader`` is the folder below ``traincast.graph`` of the code that builds modules.
    """
    digest = hashlib.sha256()
    for source in _sources(reader):
        digest.update(source)
    return digest.digest()


@cache
def code_digest() -> bytes:
    """A digest of the definitions in the code that captures models of the zoo.

    Comments, docstrings, imports, and the file in which a definition stands do not change it. It takes a few tenths of
    a second, so it is computed only where :func:`source_digest` says that a file has changed.
    """
    trees = (_Undocumented().visit(ast.parse(source)) for source in _sources("zoo"))
    nodes = (node for tree in trees for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom))
    definitions = [_MODULES.sub(":", ast.dump(node)) for node in nodes]
    return hashlib.sha256("\n".join(sorted(definitions)).encode()).digest()


_MODULES: Final = re.compile(r"traincast(\.\w+)+:")
"""Modules of the families' builders, which are named by texts."""


class _Undocumented(ast.NodeTransformer):
    """Removes statements that are only a text: docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node


def _sources(reader: str) -> Iterator[bytes]:
    """Yields the files that determine the captured graphs of ``reader``, in order of their paths."""
    root = Path(str(resources.files("traincast.graph")))
    for name in (*CAPTURING, reader):
        folder = root / name
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            yield path.read_bytes()


def cache_key(content: Mapping[str, object], *, reader: str = "zoo") -> str:
    """The name of the file that holds the graph of ``content``; ``reader`` is that of :func:`source_digest`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(source_digest(reader) + text.encode()).hexdigest()[:32]


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
