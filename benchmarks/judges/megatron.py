"""Megatron-LM's judge: its parser reads the command, and its own checks make a configuration of it.

Megatron-LM's parser is not in the wheel of ``megatron-core``: its checkout must be on the path of this Python.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from typing import Any

from benchmarks.judges.common import environment, judge, stand_in

stand_in("triton", "tqdm", "regex")

import torch  # noqa: E402
from megatron.core import utils as core_utils  # noqa: E402
from megatron.training import arguments  # noqa: E402
from packaging.version import Version  # noqa: E402

_USERS = "--train-iters 100 --lr 1e-4 --tokenizer-type NullTokenizer --mock-data --no-one-logger".split()
"""What the export leaves to the user."""


def accept(case: dict[str, Any]) -> None:
    """What ``initialize_megatron`` and the builder of the model do: parse, validate, make the configuration."""
    environment(case["world"])
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"major": 9, "minor": 0})()
    core_utils.get_te_version = lambda: Version("2.9")
    sys.argv = ["pretrain_gpt.py", *_words(case["text"]), *_USERS]
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    assert parsed.data_parallel_size == case["dp"], f"dp {parsed.data_parallel_size}, not {case['dp']}"
    assert parsed.global_batch_size == case["batch"]
    assert parsed.global_batch_size % (parsed.micro_batch_size * parsed.data_parallel_size) == 0
    config = arguments.core_transformer_config_from_args(parsed)
    assert config.num_layers == case["layers"]
    assert (config.num_moe_experts or 0) == case["experts"]
    chunks = parsed.virtual_pipeline_model_parallel_size or 1
    assert chunks == case["chunks"], f"{chunks} chunks per rank, not {case['chunks']}"


def _words(text: str) -> list[str]:
    """Flags of the command, its environment set."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("  ")[0].partition("=")
            os.environ[name] = value
    words = shlex.split("\n".join(x for x in lines if not x.startswith(("export", "unset"))).replace("\\\n", " "))
    return words[words.index("pretrain_gpt.py") + 1 : words.index("$@")]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    judge(accept)
