"""Megatron-LM's judge: its parser reads the command, and its own checks make a configuration of it.

Megatron-LM's parser is not in the wheel of ``megatron-core``: its checkout must be on the path of this Python.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import warnings
from typing import Any

from benchmarks.judges.common import environment, fake_ranks, judge, stand_in

stand_in("triton", "tqdm", "regex")

import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core import utils as core_utils  # noqa: E402
from megatron.core.models.common.embeddings import rope_utils  # noqa: E402
from megatron.training import arguments  # noqa: E402
from packaging.version import Version  # noqa: E402

# An H100 with Transformer Engine 2.10, as its containers have them.
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"major": 9, "minor": 0})()
core_utils.get_te_version = lambda: Version("2.10")
rope_utils.fused_apply_rotary_pos_emb = len

_USERS = "--train-iters 100 --lr 1e-4 --tokenizer-type NullTokenizer --mock-data --no-one-logger".split()
"""What the export leaves to the user."""


def accept(case: dict[str, Any]) -> None:
    """Do what ``initialize_megatron`` and the builder of the model do: parse, validate, make the configuration."""
    environment(case["world"])
    sys.argv = ["pretrain_gpt.py", *_words(case["text"]), *_USERS]
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    assert parsed.data_parallel_size == case["dp"], f"dp {parsed.data_parallel_size}, not {case['dp']}"
    assert parsed.global_batch_size == case["batch"]
    assert parsed.global_batch_size % (parsed.micro_batch_size * parsed.data_parallel_size) == 0
    config = arguments.core_transformer_config_from_args(parsed)
    _make_groups(parsed)
    assert config.num_layers == case["layers"]
    assert config.qk_layernorm == case["qk_norm"], "norms of queries and keys differ"
    assert (config.num_moe_experts or 0) == case["experts"]
    chunks = parsed.virtual_pipeline_model_parallel_size or 1
    assert chunks == case["chunks"], f"{chunks} chunks per rank, not {case['chunks']}"


def _make_groups(parsed: Any) -> None:
    fake_ranks(parsed.world_size)
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        parsed.tensor_model_parallel_size,
        parsed.pipeline_model_parallel_size,
        parsed.virtual_pipeline_model_parallel_size,
        context_parallel_size=parsed.context_parallel_size,
        expert_model_parallel_size=parsed.expert_model_parallel_size,
        num_distributed_optimizer_instances=parsed.num_distributed_optimizer_instances,
        expert_tensor_parallel_size=parsed.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )


def _words(text: str) -> list[str]:
    """Return the flags of the command, and set its environment."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("  ")[0].partition("=")
            os.environ[name] = value
    words = shlex.split("\n".join(x for x in lines if not x.startswith(("export", "unset"))).replace("\\\n", " "))
    return words[words.index("pretrain_gpt.py") + 1 : words.index("$@")]


def known() -> dict[str, str]:
    """Return all flags, with the type of each."""
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return {name: _kind(action) for action in parser._actions for name in action.option_strings}


def _kind(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "flag"
    if action.choices:
        return "|".join(map(str, action.choices))
    return action.type.__name__ if action.type in (int, float, str) else "any"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    judge(accept, known)
