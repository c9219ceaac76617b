"""The captured graphs of the zoo that ship with the package, so that a forecast by name needs no PyTorch.

``zoo/graphs`` holds one compressed graph file per model and ``index.json``, which has

* ``code``: the digest of the code that captured them (:func:`traincast.graph.cache.code_digest`),
* ``source``: the digest of its files, as they were when ``code`` was last computed,
* ``torch``: the release of PyTorch that they were captured with,
* ``defaults``: the default dimensions of every family,
* ``graphs``: the digest of a family and all of its dimensions, to the name of the file,
* ``parameters``: the number of parameters of each file's model,
* ``stacks``: the digest of a family and all of its dimensions but ``layers``, to the name of the file and its layers,
  for models in which another number of layers changes nothing but the counts of repeated blocks.

A graph is read only if the family, every dimension (except the layers of a stack) and the capturing code are those it
was made from. Otherwise the model is traced. ``make graphs`` rewrites the folder.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from traincast.files import write_folder, write_text
from traincast.graph import zoo
from traincast.graph.cache import code_digest, source_digest
from traincast.graph.files import graph_from_dict, graph_to_dict
from traincast.graph.operator import Block, OperatorGraph

FOLDER: Final = "graphs"
FEWEST_LAYERS: Final = 3
"""Stacks with fewer layers are traced, because their repeated blocks may not be recognised as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What the shipped graphs were made from."""

    code: str
    source: str
    torch: str
    defaults: Mapping[str, Mapping[str, Any]]
    graphs: Mapping[str, str]
    parameters: Mapping[str, int]
    stacks: Mapping[str, tuple[str, int]]

    @property
    def is_stale(self) -> bool:
        """Whether the capturing code has changed since the graphs were made; none of them is used then."""
        return is_other_code(self.code, self.source)

    def find(self, family: str, parameters: Mapping[str, Any]) -> tuple[str, int] | None:
        """Returns the file for these dimensions and the layers to add to it, or ``None`` if the model must be traced.

        Dimensions that are left out have the family's default.
        """
        if self.is_stale or family not in self.defaults:
            return None
        dimensions = {**self.defaults[family], **parameters}
        exact = self.graphs.get(_digest(family, dimensions))
        if exact is not None:
            return exact, 0
        layers = dimensions.pop("layers", None)
        stack = self.stacks.get(_digest(family, dimensions))
        if stack is None or type(layers) is not int or layers < FEWEST_LAYERS:
            return None
        return stack[0], layers - stack[1]

    def num_parameters(self, family: str, parameters: Mapping[str, Any]) -> int | None:
        """Returns how many parameters a model has whose graph ships with exactly these dimensions."""
        found = self.find(family, parameters)
        return None if found is None or found[1] else self.parameters.get(found[0])

    def lacks_sequence(self, family: str) -> bool:
        """Whether models of ``family`` are known to have no sequence length."""
        return not self.is_stale and family in self.defaults and "seq" not in self.defaults[family]


@cache
def index() -> Index:
    """The index of this installation; one without graphs counts as stale."""
    entry = _folder().joinpath("index.json")
    if not entry.is_file():
        return Index(code="", source="", torch="", defaults={}, graphs={}, parameters={}, stacks={})
    made = json.loads(entry.read_bytes())
    if not is_other_code(made["code"], made.get("source", "")):
        return Index(**made)  # other code may have written another index
    return Index(code="", source="", torch=made["torch"], defaults={}, graphs={}, parameters={}, stacks={})


def defaults_of(family: str) -> Mapping[str, Any]:
    """The default dimensions of ``family``: those of the index, or of its builder if the index is stale."""
    return index().defaults.get(family) or zoo.defaults_of(family)


def is_other_code(code: str, source: str) -> bool:
    """Whether graphs captured by ``code``, whose files had the digest ``source``, were captured by other code."""
    return source != source_digest().hex() and code != code_digest().hex()


def shipped_graph(family: str, parameters: Mapping[str, Any]) -> OperatorGraph | None:
    """Returns the graph that a capture of these dimensions gives, except its name; ``None`` if it does not ship."""
    found = index().find(family, parameters)
    if found is None:
        return None
    name, more = found
    entry = _folder().joinpath(f"{name}.json.gz")
    graph = graph_from_dict(json.loads(gzip.decompress(entry.read_bytes())), where=str(entry))
    return deeper(graph, more) if more else graph


def deeper(graph: OperatorGraph, more: int) -> OperatorGraph:
    """Returns ``graph`` with ``more`` added to the count of every repeated block."""

    def changed(block: Block) -> Block:
        count = block.count + more
        return replace(block, count=count, first=block.first or count == 1) if block.count > 1 else block

    return replace(graph, blocks=tuple(changed(block) for block in graph.blocks))


def write_shipped(path: Path, capture: Callable[[str, int | None], OperatorGraph], *, torch: str) -> None:
    """Write the folder of shipped graphs to ``path``, one for every name of the zoo.

    ``capture`` traces a model of the zoo with its own or the given number of layers. A model counts as a stack if its
    graph with the fewest layers is what a capture of it gives. Equal graphs give equal bytes; models with the same
    family and dimensions share one file.
    """
    defaults = {family: zoo.defaults_of(family) for family in zoo.FAMILIES}
    graphs: dict[str, str] = {}
    parameters: dict[str, int] = {}
    stacks: dict[str, tuple[str, int]] = {}
    contents: dict[str, bytes] = {}
    for name in zoo.names():
        card = zoo.card(name)
        dimensions = {**defaults[card.family], **card.parameters}
        if graphs.setdefault(_digest(card.family, dimensions), name) != name:
            continue
        graph = capture(name, None)
        text = json.dumps(graph_to_dict(graph), separators=(",", ":"), allow_nan=False)
        parameters[name] = graph.num_parameters
        contents[f"{name}.json.gz"] = gzip.compress(text.encode(), mtime=0)
        layers = dimensions.pop("layers", None)
        stack = _digest(card.family, dimensions)
        if stack not in stacks and _is_stack(graph, layers):
            fewest = capture(name, FEWEST_LAYERS)
            if deeper(graph, FEWEST_LAYERS - layers) == replace(fewest, name=graph.name):
                stacks[stack] = (name, layers)
    made = {
        "code": code_digest().hex(),
        "source": source_digest().hex(),
        "torch": torch,
        "defaults": defaults,
        "graphs": graphs,
        "parameters": parameters,
        "stacks": stacks,
    }
    write_folder(path, {"index.json": (json.dumps(made, indent=1) + "\n").encode(), **contents})


def stamp(path: Path) -> None:
    """Write into the index of ``path`` that its graphs are those of the capturing code as it is now."""
    entry = path / "index.json"
    made = json.loads(entry.read_bytes())
    made = {"code": code_digest().hex(), "source": source_digest().hex(), **{k: made[k] for k in _REST}}
    write_text(entry, json.dumps(made, indent=1) + "\n")


_REST: Final = ("torch", "defaults", "graphs", "parameters", "stacks")


def _is_stack(graph: OperatorGraph, layers: Any) -> bool:
    """Whether every repeated block of ``graph`` counts all of its ``layers``, or all but one or two that differ."""
    counts = {block.count for block in graph.blocks if block.count > 1}
    return type(layers) is int and layers > FEWEST_LAYERS and bool(counts) and counts <= {layers - n for n in range(3)}


def _folder() -> Any:
    return resources.files("traincast.graph.zoo").joinpath(FOLDER)


def _digest(family: str, parameters: Mapping[str, Any]) -> str:
    text = json.dumps([family, parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
