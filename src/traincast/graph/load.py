"""From what a user writes for MODEL to an operator graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincast.errors import CaptureError, FileFormatError, RequestError, UnknownNameError
from traincast.graph import cache as graph_cache
from traincast.graph import zoo
from traincast.graph.capture import capture as capture_module
from traincast.graph.capture import require_torch
from traincast.graph.files import FORMAT, graph_from_dict, read_json
from traincast.graph.huggingface import from_config
from traincast.graph.light_torch import without_compiler
from traincast.graph.operator import OperatorGraph
from traincast.graph.zoo.traceable import Traceable
from traincast.imports import import_callable, refuse_code

_MAX_SEQ = 10_000_000


def load_model(spec: str, *, seq: int | None = None, use_cache: bool = False, allow_code: bool = True) -> OperatorGraph:
    """The operator graph of ``spec``.

    ``spec`` is a name of the zoo, a family by its dimensions (``gpt:layers=24,hidden=2048,heads=16``), a
    Hugging Face ``config.json`` (or its folder), a saved graph, or ``package.module:factory``. ``seq``
    sets the tokens per sample where the model has such a thing. A factory is Python code: where ``spec`` comes from
    a data file, ``allow_code`` says whether the user lets it run.
    """
    if seq is not None and not 1 <= seq <= _MAX_SEQ:
        raise RequestError(f"sequence length {seq}: expected a whole number from 1 to {_MAX_SEQ}")
    path = Path(spec)
    if spec.endswith(".json") or (path.is_dir() and (path / "config.json").exists()):
        return _from_file(path if spec.endswith(".json") else path / "config.json", seq=seq, use_cache=use_cache)
    head = spec.partition(":")[0]
    if ":" in spec and head not in zoo.FAMILIES:
        if "=" in spec:
            raise UnknownNameError("model family", head, zoo.FAMILIES)
        if not allow_code:
            refuse_code(spec, "model")
        return capture_module(load_factory(spec), name=spec)
    card = zoo.card(spec)
    content = {"family": card.family, "parameters": dict(card.parameters), "seq": seq}
    return _through_cache(spec, content, spec, seq=seq, use_cache=use_cache)


def _from_file(path: Path, *, seq: int | None, use_cache: bool) -> OperatorGraph:
    data = read_json(path)
    if isinstance(data, dict) and data.get("format") == FORMAT:
        graph = graph_from_dict(data, where=str(path))
        if seq is not None and seq != graph.tokens_per_sample:
            raise RequestError(
                f"{path} was captured with {graph.tokens_per_sample} tokens per sample, not {seq}: capture it again"
            )
        return graph
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} is neither a Hugging Face config.json nor a Traincast graph: it holds no object")
    family, parameters = from_config(data)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    spec = f"{family}:" + ",".join(f"{k}={_plain(v)}" for k, v in parameters.items())
    return _through_cache(
        name, {"family": family, "parameters": dict(parameters), "seq": seq}, spec, seq=seq, use_cache=use_cache
    )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _through_cache(
    name: str, content: Mapping[str, object], spec: str, *, seq: int | None, use_cache: bool
) -> OperatorGraph:
    key = graph_cache.cache_key({"name": name, **content})
    if use_cache:
        kept = graph_cache.cached(key)
        if kept is not None:
            return kept
    require_torch()
    with without_compiler():
        graph = capture_module(zoo.build(spec, seq=seq), name=name)
    if use_cache:
        graph_cache.keep(key, graph)
    return graph


def load_factory(spec: str) -> Traceable:
    """Call ``package.module:factory`` and make of its result something to trace.

    The factory returns the module and example inputs, a :class:`Traceable`, or a module that declares
    ``example_inputs``. It is called with the ``meta`` device as default, so that no weights are made.
    """
    require_torch()
    import torch

    factory = import_callable(spec, "model", role="factory")
    try:
        with torch.device("meta"):
            made = factory()
    except Exception as error:  # the user's code may raise anything
        reason = " ".join(str(error).split())[:300]
        raise CaptureError(f"model {spec!r}: its factory failed: {type(error).__name__}: {reason}") from error
    return _traceable(made, spec)


def _traceable(made: Any, spec: str) -> Traceable:
    import torch

    if isinstance(made, Traceable):
        return made
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if isinstance(module, torch.nn.Module) and inputs is None:
        inputs = getattr(module, "example_inputs", None)
        inputs = inputs() if callable(inputs) else inputs
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(module, torch.nn.Module) or not isinstance(inputs, tuple | list) or not inputs:
        raise RequestError(
            f"model {spec!r}: its factory returned {type(made).__name__}; expected (module, example inputs), or a "
            f"module with example_inputs"
        )
    if not all(isinstance(t, torch.Tensor) and t.ndim >= 1 for t in inputs):
        raise RequestError(f"model {spec!r}: example inputs must be tensors whose first dim is the batch")
    specs = [(tuple(t.shape[1:]), t.dtype) for t in inputs]
    tokens = specs[0][0][0] if not inputs[0].is_floating_point() and len(specs[0][0]) == 1 else 0
    return Traceable(
        module=module,
        inputs=lambda batch: tuple(torch.empty((batch, *shape), dtype=dtype) for shape, dtype in specs),
        tokens_per_sample=tokens,
    )
