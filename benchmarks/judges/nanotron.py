"""nanotron's judge: its configuration classes read the file, and its groups of ranks are made of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.judges.common import fake_ranks, fields_of, judge, stand_in

stand_in(
    "datasets", "flash_attn", "grouped_gemm", "triton", "datatrove", "torchtyping", "transformers", "tqdm", "fsspec"
)

from nanotron.config import Config, get_config_from_file  # noqa: E402
from nanotron.config.models_config import LlamaConfig, Qwen2Config  # noqa: E402
from nanotron.config.utils_config import str_to_dtype  # noqa: E402
from nanotron.parallel import ParallelContext  # noqa: E402


class _Ranks(ParallelContext):  # type: ignore[misc]
    """Groups without a GPU."""

    def set_device(self) -> None:
        """Do nothing: there is no GPU."""


def accept(case: dict[str, Any]) -> None:
    """Read the file as ``run_train.py`` does, make the trainer's groups, and run the checks of its pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(case["text"], encoding="utf-8")
        config = get_config_from_file(str(path))
    spread, model = config.parallelism, config.model.model_config
    fake_ranks(case["world"])
    _Ranks(
        tensor_parallel_size=spread.tp,
        pipeline_parallel_size=spread.pp,
        data_parallel_size=spread.dp,
        expert_parallel_size=spread.expert_parallel_size,
        context_parallel_size=spread.context_parallel_size,
    )
    if spread.context_parallel_size > 1:
        raise NotImplementedError("Init with Context parallel size > 1 not supported yet")
    if type(spread.pp_engine).__name__.startswith("OneForward"):
        assert config.tokens.batch_accumulation_per_replica >= spread.pp - 1
    assert config.global_batch_size == case["batch"], f"trains on {config.global_batch_size}, not {case['batch']}"
    assert model.num_hidden_layers == case["layers"]
    assert model.num_key_value_heads % spread.tp == 0
    experts = getattr(model, "moe_config", None)
    assert (experts.num_experts if experts else 0) == case["experts"]
    assert (experts.moe_intermediate_size if experts else 0) == case["expert_ffn"]


def known() -> dict[str, str]:
    """All fields, with those of both models that are written."""
    found = fields_of(Config)
    for model in (LlamaConfig, Qwen2Config):
        found |= fields_of(model, "model.model_config.")
    choices = {"parallelism.pp_engine": "1f1b|afab", "parallelism.tp_mode": "ALL_REDUCE|REDUCE_SCATTER"}
    return found | choices | {"model.dtype": "|".join(str_to_dtype)}


if __name__ == "__main__":
    judge(accept, known)
