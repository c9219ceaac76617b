"""The parts ``graphs`` and ``configurations``: models as operator graphs, byte for byte as a file stores them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.golden.huggingface_configs import PUBLISHED
from tests.graph import huggingface_examples

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope
from traincast import OperatorGraph

_SMALL_ZOO: Final = ("bert-base", "dlrm-small", "gpt2", "llama3-8b", "mobilenet-v1", "resnet50")
_CAPTURED: Final = (
    "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128",
    "llama:layers=4,hidden=256,heads=8,kv_heads=4,vocab=1000,seq=128",
    "moe:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=128",
    "resnet-cifar:layers=20",
    "bert:layers=2,hidden=128,heads=4,vocab=1000,seq=64",
    "lstm:layers=2,hidden=128,vocab=1000,seq=32",
    "vit:layers=2,hidden=128,heads=4",
    "gpt:layers=two",
    "gpt:nothing=2",
    "no-such-family:layers=2",
)
"""Models by their dimensions, which are captured anew each time."""
_BAD_FILES: Final[dict[str, bytes]] = {
    "a list": b"[1, 2]",
    "null": b"null",
    "nested": b"[" * 200_000,
    "no model_type": b"{}",
    "missing field": b'{"model_type": "llama", "num_attention_heads": 2}',
}
_BAD_FIELDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("llama", {"hidden_size": None}),
    ("llama", {"hidden_size": -4096}),
    ("llama", {"hidden_size": "4096"}),
    ("llama", {"hidden_size": [4096]}),
    ("llama", {"tie_word_embeddings": "yes"}),
    ("llama", {"hidden_act": "mish"}),
    ("mistral", {"sliding_window": -1}),
    ("phi3", {"partial_rotary_factor": 1.5}),
    ("qwen2", {"use_sliding_window": True}),
    ("qwen3_moe", {"mlp_only_layers": [0]}),
    ("qwen3_moe", {"num_experts": None}),
    ("opt", {"word_embed_proj_dim": 512}),
    ("mpt", {"attn_config": "flash"}),
    ("bert", {"type_vocab_size": 1}),
    ("deepseek_v3", {"moe_layer_freq": 2}),
    ("vit", {"id2label": 7}),
    ("t5", {"feed_forward_proj": {"a": 1}}),
)
_SMALL_TYPES: Final = frozenset("example bert|example gpt2|example llama|example mixtral|example mamba2".split("|"))

_COLUMNS: Final = ("file", "operators", "parameters")


def _graphs(scope: Scope) -> Iterator[Entry]:
    names = [name for name, _ in canonical.zoo()]
    for name in _SMALL_ZOO if scope.small else names:
        yield f"zoo {name}", _digested(lambda name=name: traincast.capture(name))  # type: ignore[misc]
    for spec in _CAPTURED:
        yield f"captured {spec}", _digested(lambda spec=spec: traincast.capture(spec))  # type: ignore[misc]


def _digested(capture: Callable[[], OperatorGraph]) -> tuple[str, ...]:
    try:
        graph = capture()
    except traincast.TraincastError as error:
        return (f"{REFUSED}{error}",)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        traincast.save_graph(graph, path)
        return canonical.digest(path.read_bytes(), 16), str(len(graph.operators)), str(graph.num_parameters)


def _configurations(scope: Scope) -> Iterator[Entry]:
    """Yield the graph of every configuration, or why it is refused; a path in a message is left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model" / "config.json"  # the folder's name becomes that of the graph
        path.parent.mkdir()
        for key, content in _files():
            if scope.small and key.split()[0] in ("example", "published") and key not in _SMALL_TYPES:
                continue
            path.write_bytes(content)
            values = _digested(lambda: traincast.capture(str(path)))
            yield key, tuple(value.replace(folder, "") for value in values)


def _files() -> Iterator[tuple[str, bytes]]:
    examples = {config["model_type"]: config for _, config in PUBLISHED.values()}
    examples |= {name: config for name, (config, _) in huggingface_examples.EXAMPLES.items()}
    for name, config in examples.items():
        yield f"example {name}", json.dumps(config).encode()
    for name, (_, config) in PUBLISHED.items():
        if config in examples.values():
            continue
        yield f"published {name}", json.dumps(config).encode()
    for name, change in _BAD_FIELDS:
        field, value = next(iter(change.items()))
        yield f"bad-field {name} {field}={value}", json.dumps(examples[name] | change).encode()
    for name, content in _BAD_FILES.items():
        yield f"bad-file {name}", content


GRAPHS: Final = Part(name="graphs", columns=_COLUMNS, firm=_COLUMNS, entries=_graphs)
CONFIGURATIONS: Final = Part(name="configurations", columns=_COLUMNS, firm=_COLUMNS, entries=_configurations)
