"""Well-known Hugging Face configurations have the parameters that their models were published with."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.golden.huggingface_configs import PUBLISHED
from traincast import capture
from traincast.graph.huggingface.read import from_config
from traincast.graph.zoo import FAMILIES


@pytest.mark.long(but=12)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_has_the_published_parameters(name: str) -> None:
    published, config = PUBLISHED[name]
    family, dimensions = from_config(config)
    module, _, builder = FAMILIES[family].partition(":")
    built = getattr(importlib.import_module(module), builder)(**dimensions).module
    assert sum(parameter.numel() for parameter in built.parameters()) == published


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["gemma-3-1b", "mamba2-2.7b", "nemotron-h-8b", "qwen3-next-80b", "gemma-3-4b"])
def test_a_captured_graph_counts_the_same_parameters(name: str, tmp_path: Path) -> None:
    published, config = PUBLISHED[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert capture(str(path), seq=1024).num_parameters == published
