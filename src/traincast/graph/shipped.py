"""The captured graphs of the zoo that ship with the package: a forecast by name needs no PyTorch.

``zoo/graphs`` holds one compressed graph file per model and ``index.json``, which has

* ``code``: the digest of the code that captured them (:func:`traincast.graph.cache.code_digest`),
* ``torch``: the release of PyTorch that they were captured with,
* ``defaults``: the default dimensions of every family,
* ``graphs``: the digest of a family and all of its dimensions, to the name of the file.

A graph is read only if the family, every dimension and the capturing code are those it was made from. Otherwise the
model is traced. ``make graphs`` writes the folder anew.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from traincast.files import write_folder
from traincast.graph import zoo
from traincast.graph.cache import code_digest
from traincast.graph.files import graph_from_dict, graph_to_dict
from traincast.graph.operator import OperatorGraph

FOLDER: Final = "graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What the shipped graphs were made from."""

    code: str
    torch: str
    defaults: Mapping[str, Mapping[str, Any]]
    graphs: Mapping[str, str]

    @property
    def is_stale(self) -> bool:
        """Whether the code that captures has changed since: none of the graphs is used then."""
        return self.code != code_digest().hex()

    def file_of(self, family: str, parameters: Mapping[str, Any]) -> str | None:
        """The name of the file with the graph of these dimensions; what is left out has the family's default."""
        if self.is_stale or family not in self.defaults:
            return None
        return self.graphs.get(_digest(family, {**self.defaults[family], **parameters}))

    def lacks_sequence(self, family: str) -> bool:
        """Whether models of ``family`` are known to have no sequence length."""
        return not self.is_stale and family in self.defaults and "seq" not in self.defaults[family]


@cache
def index() -> Index:
    """The index of this installation; one without graphs counts as stale."""
    entry = _folder().joinpath("index.json")
    if not entry.is_file():
        return Index(code="", torch="", defaults={}, graphs={})
    return Index(**json.loads(entry.read_bytes()))


def shipped_graph(family: str, parameters: Mapping[str, Any]) -> OperatorGraph | None:
    """The shipped graph of exactly these dimensions, named as the model of the zoo, or None."""
    name = index().file_of(family, parameters)
    if name is None:
        return None
    entry = _folder().joinpath(f"{name}.json.gz")
    return graph_from_dict(json.loads(gzip.decompress(entry.read_bytes())), where=str(entry))


def write_shipped(path: Path, capture: Callable[[str], OperatorGraph], *, torch: str) -> None:
    """Write the folder of shipped graphs to ``path``: what ``capture`` returns for every name of the zoo.

    Equal graphs give equal bytes. Models with the same family and dimensions share one file.
    """
    defaults = {family: zoo.defaults_of(family) for family in zoo.FAMILIES}
    graphs: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for name in zoo.names():
        card = zoo.card(name)
        digest = _digest(card.family, {**defaults[card.family], **card.parameters})
        if graphs.setdefault(digest, name) == name:
            text = json.dumps(graph_to_dict(capture(name)), separators=(",", ":"), allow_nan=False)
            contents[f"{name}.json.gz"] = gzip.compress(text.encode(), mtime=0)
    made = {"code": code_digest().hex(), "torch": torch, "defaults": defaults, "graphs": graphs}
    write_folder(path, {"index.json": (json.dumps(made, indent=1) + "\n").encode(), **contents})


def _folder() -> Any:
    return resources.files("traincast.graph.zoo").joinpath(FOLDER)


def _digest(family: str, parameters: Mapping[str, Any]) -> str:
    text = json.dumps([family, parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
