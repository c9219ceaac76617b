"""Decoders fine-tuned to classify texts: a projection to a few classes replaces the one to the vocabulary."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from traincast.graph import Operator, OperatorGraph, Phase, TensorSpec
from traincast.tables import Row, text

_TASKS: Final = re.compile(r"\b(?:mrpc|glue|sst-?2)\b", re.IGNORECASE)
"""Datasets whose scripts train classifiers (Hugging Face, ``AutoModelForSequenceClassification``)."""
_LOGITS: Final = "head.logits"
_CLASSES: Final = 2


def classifier_of(row: Row, graph: OperatorGraph) -> OperatorGraph:
    """Return ``graph`` with a head of two classes if the row's dataset has classes and the model's head is its own.

    A decoder whose head shares the embedding's weights stays as it is, and so does a model without such a head.
    """
    said = " ".join(text(row, key) for key in ("task", "notes"))
    head = [op for op in graph.operators if op.scope == _LOGITS and op.phase is Phase.OPTIMIZER]
    if not head or not _TASKS.search(said):
        return graph
    vocab = head[0].parameters[0].shape[0]
    changed = tuple(_with_classes(op, vocab) if op.scope in (_LOGITS, "") else op for op in graph.operators)
    return replace(graph, name=f"{graph.name}:classes={_CLASSES}", operators=changed)


def _with_classes(op: Operator, vocab: int) -> Operator:
    """Return ``op`` with the dims of the vocabulary as small as the number of classes."""

    def small(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, shape=tuple(_CLASSES if dim == vocab else dim for dim in t.shape)) for t in tensors)

    return replace(
        op,
        inputs=small(op.inputs),
        outputs=small(op.outputs),
        parameters=small(op.parameters),
        saved=small(op.saved),
    )
