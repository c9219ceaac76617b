"""DeepSpeed's judge: ``deepspeed.initialize`` makes an engine of a toy model, on as many ranks as were asked for."""

from __future__ import annotations

import json
import logging
from typing import Any

from benchmarks.judges.common import fake_ranks, judge, stand_in

stand_in("triton", "transformers")

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402

_CUTS = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*up_proj\.weight$"], "partition_type": "column"},
        {"patterns": [r".*down_proj\.weight$"], "partition_type": "row"},
    ],
}
"""How AutoTP is to cut the toy: what a model of Hugging Face says by itself."""


class Toy(torch.nn.Module):  # type: ignore[misc]
    """Two products, the second cut by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(64, 128, bias=False)
        self.down_proj = torch.nn.Linear(128, 64, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.up_proj(x))


def accept(case: dict[str, Any]) -> None:
    """Make an engine, and ask it for the degrees it has found."""
    config = json.loads(case["text"])
    if deepspeed.comm.is_initialized():
        deepspeed.comm.destroy_process_group()
    fake_ranks(case["world"])
    deepspeed.comm.init_distributed(dist_backend="fake", verbose=False)
    stages = config.get("pipeline", {}).get("stages", 1)
    if stages > 1:
        layers = [torch.nn.Linear(8, 8) for _ in range(stages)]
        model: Any = PipelineModule(layers=layers, num_stages=stages, partition_method="uniform", loss_fn=torch.sum)
    else:
        model = Toy()
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config["zero_force_ds_cpu_optimizer"] = False
    if "tensor_parallel" in config:
        config["tensor_parallel"]["partition_config"] = _CUTS
    engine, *_ = deepspeed.initialize(model=model, config=config)
    assert engine.dp_world_size == case["dp"], f"dp {engine.dp_world_size}, not {case['dp']}"
    assert engine.sequence_parallel_size == case["cp"], f"cp {engine.sequence_parallel_size}, not {case['cp']}"
    assert engine.gradient_accumulation_steps() * engine.train_micro_batch_size_per_gpu() * case["dp"] == case["batch"]
    if engine.autotp_size() <= 1:
        assert engine.train_batch_size() == case["batch"]
    assert max(1, engine.autotp_size()) == case["tp"]


if __name__ == "__main__":
    get_accelerator().is_fp16_supported = lambda: True  # nothing is computed
    logging.disable(logging.CRITICAL)
    judge(accept)
