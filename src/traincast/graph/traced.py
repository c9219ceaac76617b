"""Traces models whose graph neither ships nor is stored: of the zoo, of ``transformers``, and of users' factories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from traincast.errors import CaptureError
from traincast.graph import shipped, zoo
from traincast.graph.capture.capture import capture, require_torch
from traincast.graph.capture.light_torch import without_compiler
from traincast.graph.capture.own_modules import load_factory
from traincast.graph.capture.tracing import Progress, module_of
from traincast.graph.operator import OperatorGraph
from traincast.imports import described, place_of

_ANSWERED = "forecast as if the answer were no (no padding, nothing special)"
_WRITTEN_OUT = "cannot run with fused attention in transformers: its attention is forecast as it is written out"


def trace_family(name: str, spec: str, *, seq: int | None = None, progress: Progress | None = None) -> OperatorGraph:
    """Trace the model of the zoo that ``spec`` describes, and call its graph ``name``.

    If PyTorch is missing, the error says why it is needed.
    """
    reason = (
        "while the shipped graphs are of other code (`make graphs` writes them anew),"
        if shipped.index().is_stale
        else "a size that does not ship with Traincast,"
    )
    length = "" if seq is None else f" with {seq} tokens per sample"
    require_torch(f"tracing {spec}{length}, {reason}")
    with without_compiler():
        return capture(zoo.build(spec, seq=seq), name=name, progress=progress)


def capture_of_zoo(name: str, layers: int | None = None) -> OperatorGraph:
    """Trace the zoo's model ``name``, with its own or the given number of layers; nothing shipped or cached is read."""
    require_torch(f"tracing {name}")
    with without_compiler():
        return capture(zoo.build(name, layers=layers), name=name)


def trace_factory(spec: str, *, seq: int | None = None, progress: Progress | None = None) -> OperatorGraph:
    """Trace the module that the user's ``package.module:factory`` builds."""
    return capture(load_factory(spec, seq=seq), name=spec, progress=progress)


def trace_transformers(
    data: Mapping[str, object], *, name: str, seq: int | None = None, progress: Progress | None = None
) -> OperatorGraph:
    """Trace the model that an installed ``transformers`` builds from the content of a ``config.json``.

    A model that cannot run with fused attention is traced with attention written out; the graph's ``note`` says so.
    """
    from traincast.graph.huggingface.answers import fused
    from traincast.graph.huggingface.modules import transformers_model

    require_torch(f"tracing {name}")
    traceable, notes = transformers_model(data, seq=seq)
    try:
        with fused(traceable.module) as asked:
            graph = capture(traceable, name=name, progress=progress)
    except CaptureError as error:
        traceable, notes = transformers_model(data, seq=seq, eager=True)
        try:
            with fused(traceable.module) as asked:
                graph = capture(traceable, name=name, progress=progress)
        except CaptureError:
            raise _untraceable(str(data["model_type"]), error) from error.__cause__
        notes.append(f"{name} {_WRITTEN_OUT}")
    if asked:
        notes.append(f"{name} decides by its data at {', '.join(sorted(asked))}: {_ANSWERED}")
    return replace(graph, attributes={**graph.attributes, "note": "; ".join(notes)}) if notes else graph


def _untraceable(model_type: str, error: CaptureError) -> CaptureError:
    """The error for a model of ``transformers`` that cannot be traced with the inputs made from its configuration."""
    failure = error.__cause__
    if failure is None:
        return error
    return CaptureError(
        f"model_type {model_type!r} cannot be traced from its configuration alone: it fails{module_of(failure)}"
        f"{place_of(failure)}: {described(failure)}; give it with the inputs that it needs as a module of your own "
        "(package.module:factory)"
    )
