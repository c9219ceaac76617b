"""Hugging Face ``config.json`` files, read as families of the zoo: sizes only, no code and no weights.

A configuration states the longest sequence that a model accepts, not the one it is trained with. So the sequence
length defaults to that maximum or to :data:`DEFAULT_SEQ`, whichever is less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from traincast.errors import FileFormatError, RequestError
from traincast.graph.files import read_json
from traincast.graph.huggingface.decoders import DECODER_READERS
from traincast.graph.huggingface.families import FAMILY_READERS
from traincast.graph.huggingface.fields import DEFAULT_SEQ, Fields, Reading, show
from traincast.graph.huggingface.hybrids import HYBRID_READERS, without_model_type

__all__ = ["DEFAULT_SEQ", "READERS", "Reading", "from_config", "is_read", "read_config"]

READERS: Final[Mapping[str, Callable[[Fields], Reading]]] = dict(
    sorted({**FAMILY_READERS, **DECODER_READERS, **HYBRID_READERS}.items())
)
"""The reader of each ``model_type``."""


def read_config(path: str | Path) -> Reading:
    """Returns the family and its dimensions from the ``config.json`` at ``path``."""
    data = read_json(Path(path))
    if not isinstance(data, dict):
        raise FileFormatError(f"model file {path} holds a {type(data).__name__}, not an object with model_type")
    return from_config(data)


def from_config(data: Mapping[str, object]) -> Reading:
    """Returns the family and its dimensions from the content of a ``config.json``."""
    model_type = data.get("model_type")
    if model_type is None:
        model_type, data = without_model_type(data)
    if not isinstance(model_type, str) or model_type not in READERS:
        raise RequestError(
            f"unknown model_type {show(model_type)}: it is none of the {len(READERS)} that Traincast reads itself "
            "(docs/your-models.md lists them); for others, pip install 'traincast[transformers]'"
        )
    return READERS[model_type](Fields(model_type, data))


def is_read(data: Mapping[str, object]) -> bool:
    """Whether Traincast reads a ``config.json`` of this content itself, without ``transformers``."""
    model_type = data.get("model_type")
    return model_type is None or (isinstance(model_type, str) and model_type in READERS)
