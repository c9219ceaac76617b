"""Hugging Face ``config.json`` files, read as families of the zoo: sizes only, no code and no weights.

A configuration states the longest sequence that a model accepts, not the one it is trained with. So the sequence
length defaults to that maximum or to :data:`DEFAULT_SEQ`, whichever is less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from traincast.errors import RequestError
from traincast.graph.huggingface.fields import DEFAULT_SEQ, Fields, Reading, show
from traincast.graph.huggingface.special import SPECIAL_READERS, without_model_type
from traincast.graph.huggingface.types import read_type, type_names

__all__ = ["DEFAULT_SEQ", "Reading", "from_config", "is_read", "readers"]


@cache
def readers() -> Mapping[str, Callable[[Fields], Reading]]:
    """The reader of each ``model_type``: a table of ``types.toml``, or code."""
    found: dict[str, Callable[[Fields], Reading]] = {name: partial(read_type, name) for name in type_names()}
    return dict(sorted((found | dict(SPECIAL_READERS)).items()))


def from_config(data: Mapping[str, object]) -> Reading:
    """Returns the family and its dimensions from the content of a ``config.json``."""
    model_type = data.get("model_type")
    if model_type is None:
        model_type, data = without_model_type(data)
    if not isinstance(model_type, str) or model_type not in readers():
        raise RequestError(
            f"unknown model_type {show(model_type)}: it is none of the {len(readers())} that Traincast reads itself "
            "(docs/your-models.md lists them); for others, pip install 'traincast[transformers]'"
        )
    return readers()[model_type](Fields(model_type, data))


def is_read(data: Mapping[str, object]) -> bool:
    """Whether Traincast reads a ``config.json`` of this content itself, without ``transformers``."""
    model_type = data.get("model_type")
    return model_type is None or (isinstance(model_type, str) and model_type in readers())
