"""Hugging Face configurations: read as families of the zoo, and refused in one line when they are wrong."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.huggingface_configs import PUBLISHED
from tests.graph.huggingface_examples import EXAMPLES, LLAMA
from traincast import FileFormatError, RequestError
from traincast.graph.huggingface.read import DEFAULT_SEQ, from_config, readers
from traincast.graph.load import load_model
from traincast.graph.zoo import FAMILIES

EXAMPLES = {config["model_type"]: (config, count) for count, config in PUBLISHED.values()} | EXAMPLES


def test_every_reader_has_an_example() -> None:
    assert set(readers()) - set(EXAMPLES) == {"chatglm", "granitemoeshared", "llama4_text"}  # glm, granitemoe, llama4


@pytest.mark.long(but=9)
@pytest.mark.parametrize("model_type", EXAMPLES)
def test_a_configuration_builds_the_model_it_describes(model_type: str) -> None:
    config, expected = EXAMPLES[model_type]
    family, parameters = from_config(config)
    module_name, _, function_name = FAMILIES[family].partition(":")
    traceable = getattr(importlib.import_module(module_name), function_name)(**parameters)
    assert sum(p.numel() for p in traceable.module.parameters()) == expected


def test_sequences_default_to_the_maximum_but_not_beyond_what_is_usual() -> None:
    assert from_config(LLAMA)[1]["seq"] == DEFAULT_SEQ
    assert from_config(LLAMA | {"max_position_embeddings": 2048})[1]["seq"] == 2048


def test_windows_and_biases_are_read() -> None:
    assert from_config(EXAMPLES["mistral"][0])[1]["window"] == 4096
    assert from_config(EXAMPLES["mistral"][0] | {"sliding_window": None})[1]["window"] == 0
    biased = from_config(LLAMA | {"attention_bias": True})[1]
    assert biased["qkv_bias"] and biased["out_bias"] and not biased["mlp_bias"]
    assert from_config(EXAMPLES["qwen2"][0])[1]["qkv_bias"]


def test_reading_a_configuration_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from traincast.graph.huggingface.read import from_config; "
        f"from_config({LLAMA!r}); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "not valid JSON": (b"{model_type: llama}", "not valid JSON"),
    "cut off": (b'{"model_type": "llama"', "not valid JSON"),
    "not text": (b"\xff\xfe\x00\x00\xff", "not valid JSON"),
    "a list": (b"[1, 2]", "holds no object"),
    "a number": (b"12", "holds no object"),
    "null": (b"null", "holds no object"),
    "nested": (b"[" * 200_000, "nested too deeply"),
    "nested objects": (b'{"a":' * 200_000, "nested too deeply"),
    "a number of too many digits": (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "no model_type": (b"{}", "no model_type"),
    "missing field": (b'{"model_type": "llama", "num_attention_heads": 2}', "num_hidden_layers is missing"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[case]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        load_model(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("model_type", ["rwkv", ["llama"], "x" * 100_000], ids=["unknown", "a list", "without end"])
def test_an_unknown_type_is_refused_in_one_line(model_type: object) -> None:
    with pytest.raises(RequestError, match=r"^unknown model_type .*: it is none of the \d+ that") as caught:
        from_config({"model_type": model_type})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for path, message in (
        (tmp_path / "absent.json", "No such file"),
        (folder, "Is a directory"),
        ("a\0b.json", "null"),
    ):
        with pytest.raises(FileFormatError, match=message):
            load_model(str(path))


def test_a_file_that_is_far_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincast.graph.files._MAX_BYTES", 1024**2)
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (1024**2 + 1))
    with pytest.raises(FileFormatError, match="larger than 1 MiB"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("llama", {"hidden_size": None}, "hidden_size is missing"),
        ("llama", {"hidden_size": float("nan")}, "hidden_size nan is not a whole number"),
        ("llama", {"hidden_size": float("inf")}, "hidden_size inf is not a whole number"),
        ("llama", {"hidden_size": -4096}, "hidden_size -4096 must be between 1 and"),
        ("llama", {"hidden_size": 0}, "hidden_size 0 must be between 1 and"),
        ("llama", {"hidden_size": 10**30}, "hidden_size of 100 bits must be between"),
        ("llama", {"hidden_size": 10**5000}, "hidden_size of 16610 bits must be between"),
        ("llama", {"hidden_size": "4096"}, "hidden_size '4096' is not a whole number"),
        ("llama", {"hidden_size": True}, "hidden_size True is not a whole number"),
        ("llama", {"hidden_size": [4096]}, "hidden_size [4096] is not a whole number"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings 'yes' must be true or false"),
        ("llama", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; known are silu"),
        ("mistral", {"sliding_window": -1}, "sliding_window -1 must be between 0 and"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 must be a number from 0 to 1"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers [0] is not supported"),
        ("qwen3_moe", {"num_experts": None}, "num_experts or num_local_experts is missing"),
        ("opt", {"word_embed_proj_dim": 512}, "word_embed_proj_dim 512 is not supported"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported"),
        ("mpt", {"attn_config": "flash"}, "attn_config 'flash' is not an object"),
        ("mpt", {"attn_config": {"alibi": 1}}, "alibi 1 must be true or false"),
        ("bert", {"type_vocab_size": 1}, "type_vocab_size 1 is not supported"),
        ("gpt_neox", {"rotary_pct": float("nan")}, "rotary_pct nan must be a number from 0 to 1"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ("vit", {"id2label": 7}, "id2label 7 is neither a list nor an object"),
        ("t5", {"feed_forward_proj": {"a": 1}}, "feed_forward_proj {'a': 1} is not supported"),
    ],
)
def test_a_bad_field_is_named_with_its_value(model_type: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        from_config(EXAMPLES[model_type][0] | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), model_type=st.sampled_from(sorted(EXAMPLES)))
def test_any_value_in_any_field_is_read_or_refused(data: st.DataObject, model_type: str) -> None:
    config = dict(EXAMPLES[model_type][0])
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(_VALUES)
    try:
        family, parameters = from_config(config)
    except RequestError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(family, str) and all(isinstance(v, int | float | str) for v in parameters.values())
