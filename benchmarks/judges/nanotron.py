"""nanotron's judge: its configuration classes read the file, and its groups of ranks are made of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.judges.common import fake_ranks, judge, stand_in

stand_in(
    "datasets", "flash_attn", "grouped_gemm", "triton", "datatrove", "torchtyping", "transformers", "tqdm", "fsspec"
)

from nanotron.config import get_config_from_file  # noqa: E402
from nanotron.parallel import ParallelContext  # noqa: E402


class _Ranks(ParallelContext):  # type: ignore[misc]
    """Groups without a GPU."""

    def set_device(self) -> None:
        """There is none."""


def accept(case: dict[str, Any]) -> None:
    """Read the file as ``run_train.py`` does, make the trainer's groups, and ask what its pipeline asks."""
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


if __name__ == "__main__":
    judge(accept)
