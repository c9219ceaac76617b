"""Loads the operator graph of the MODEL that a user names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from traincast.errors import FileFormatError, RequestError, UnknownNameError
from traincast.graph import cache as graph_cache
from traincast.graph import shipped, zoo
from traincast.graph.files import FORMAT, graph_from_dict, read_json
from traincast.graph.operator import OperatorGraph
from traincast.imports import import_callable, refuse_code

if TYPE_CHECKING:
    import torch

    from traincast.graph.capture.tracing import Progress
    from traincast.graph.zoo.traceable import Traceable

_MAX_SEQ = 10_000_000


def load_model(
    spec: str | torch.nn.Module | Traceable,
    example_inputs: Any = None,
    *,
    seq: int | None = None,
    use_cache: bool = False,
    progress: Progress | None = None,
    allow_code: bool = True,
) -> OperatorGraph:
    """Returns the operator graph of ``spec``.

    ``spec`` is a name of the zoo, a family by its dimensions (``gpt:layers=24,hidden=2048,heads=16``), a
    Hugging Face ``config.json`` (or its folder), an ONNX file, a saved graph, ``package.module:factory``,
    ``package.module:train_step`` of a JAX step, or a live module with ``example_inputs`` (a tensor, or a tuple of
    tensors, whose first dim is the batch). A name, a family or a ``config.json`` may end in ``+mtp`` or ``+mtp=2``:
    then the model is also trained to predict that many tokens after the next one, by default as published. ``seq`` sets
    the tokens per sample; it is refused if the model has no sequence. ``progress`` is called during tracing, if the
    model is traced. A factory and a step are Python code: if ``spec`` comes from a data file, ``allow_code`` says
    whether the user allows it to run.
    """
    if seq is not None and not 1 <= seq <= _MAX_SEQ:
        raise RequestError(f"sequence length {seq}: expected a whole number from 1 to {_MAX_SEQ}")
    if not isinstance(spec, str):
        from traincast.graph.capture.own_modules import load_module

        return load_module(spec, example_inputs, seq=seq, progress=progress)
    if example_inputs is not None:
        raise RequestError(f"example inputs are for a live module, and the model is {spec!r}: leave them out")
    plain, further = zoo.split_further(spec)
    path = Path(plain)
    if spec.endswith(".onnx"):
        from traincast.graph.onnx import load_onnx

        content = {"onnx": _digest_of(path), "name": path.stem, "seq": seq, "torch": _version("torch")}
        key = graph_cache.cache_key(content, reader="onnx") if use_cache else ""
        return _kept(key, lambda: load_onnx(path, seq=seq, progress=progress))
    if plain.endswith(".json") or _holds_config(path):
        file = path if plain.endswith(".json") else path / "config.json"
        return _from_file(file, seq, use_cache, progress, further=further)
    head = spec.partition(":")[0]
    if ":" in spec and head not in zoo.FAMILIES:
        if "=" in spec:
            raise UnknownNameError("model family", head, zoo.FAMILIES)
        if not allow_code:
            refuse_code(spec, "model")
        from traincast.graph.jax import is_jax_step, load_jax
        from traincast.graph.traced import trace_factory

        step = import_callable(spec, "model", role="factory")
        if is_jax_step(step):
            if seq is not None:
                raise RequestError(f"model {spec!r} is a JAX step: its example inputs set the sequence length")
            return load_jax(step, spec)
        return trace_factory(spec, seq=seq, progress=progress)
    card = zoo.card(spec)
    return _of_family(_Wanted(card.name, card.name, card.family, card.parameters, seq), use_cache, progress)


def _holds_config(path: Path) -> bool:
    try:
        return (path / "config.json").is_file()
    except OSError:  # not every name of a model can be that of a folder
        return False


def _from_file(
    path: Path, seq: int | None, use_cache: bool, progress: Progress | None, *, further: int | None = None
) -> OperatorGraph:
    from traincast.graph.huggingface.read import from_config, is_read

    data = read_json(path)
    if further is not None and not (isinstance(data, dict) and data.get("format") != FORMAT and is_read(data)):
        raise RequestError(f"model '{path}+mtp': further tokens can only be added to a config.json that is read itself")
    if isinstance(data, dict) and data.get("format") == FORMAT:
        graph = graph_from_dict(data, where=str(path))
        if seq is not None and seq != graph.tokens_per_sample:
            raise RequestError(
                f"{path} was captured with {graph.tokens_per_sample} tokens per sample, not {seq}: capture it again"
            )
        return graph
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} is neither a Hugging Face config.json nor a Traincast graph: it holds no object")
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    if not is_read(data):
        from traincast.graph.traced import trace_transformers

        versions = {package: _version(package) for package in ("torch", "transformers")}
        content = {"config": data, "name": name, "seq": seq, **versions}
        key = graph_cache.cache_key(content, reader="huggingface") if use_cache else ""
        return _kept(key, lambda: trace_transformers(data, name=name, seq=seq, progress=progress))
    family, parameters = from_config(data)
    if further is not None:
        stated = data.get("num_nextn_predict_layers")
        depths = further or (stated if isinstance(stated, int) and stated > 0 else 1)
        name = f"{name}+mtp"
        parameters = zoo.with_further(name, family, parameters, depths)
    spec = f"{family}:" + ",".join(f"{k}={_word_for(v)}" for k, v in parameters.items())
    return _of_family(_Wanted(name, spec, family, parameters, seq), use_cache, progress)


def _word_for(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Wanted(NamedTuple):
    """A requested model: the name of its graph, the spec that builds it, its family and its dimensions."""

    name: str
    spec: str
    family: str
    parameters: Mapping[str, Any]
    seq: int | None

    @property
    def dimensions(self) -> dict[str, Any]:
        """The parameters that were given, with the sequence length."""
        return {**self.parameters} if self.seq is None else {**self.parameters, "seq": self.seq}


def _of_family(wanted: _Wanted, use_cache: bool, progress: Progress | None) -> OperatorGraph:
    """The graph that ships with the package, else the one in the cache, else a new capture."""
    if wanted.seq is not None and shipped.index().lacks_sequence(wanted.family):
        raise zoo.no_sequence(wanted.spec, wanted.seq)
    found = shipped.shipped_graph(wanted.family, wanted.dimensions)
    if found is not None:
        return replace(found, name=wanted.name)

    def traced() -> OperatorGraph:
        from traincast.graph.traced import trace_family

        return trace_family(wanted.name, wanted.spec, seq=wanted.seq, progress=progress)

    content = {
        "name": wanted.name,
        "family": wanted.family,
        "parameters": dict(wanted.parameters),
        "seq": wanted.seq,
    }
    return _kept(graph_cache.cache_key(content) if use_cache else "", traced)


def _kept(key: str, trace: Callable[[], OperatorGraph]) -> OperatorGraph:
    """Return the cached graph of ``key``; if there is none, trace it and cache it. Without a key, nothing is cached."""
    found = graph_cache.cached(key) if key else None
    if found is not None:
        return found
    graph = trace()
    if key:
        graph_cache.keep(key, graph)
    return graph


def _digest_of(path: Path) -> str:
    """A digest of the file's content; empty if the file cannot be read, which its reader will report."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _version(package: str) -> str:
    """The installed version of ``package``; empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
