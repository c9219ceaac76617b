"""DeepSpeed's judge: ``deepspeed.initialize`` makes an engine of a toy model, on as many ranks as were asked for."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from benchmarks.judges.common import fake_ranks, fields_of, judge, kind_of, stand_in

stand_in("triton", "transformers")

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed.module_inject.auto_ep_config import AutoEPConfig  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402
from deepspeed.runtime import config, constants  # noqa: E402
from deepspeed.runtime.activation_checkpointing import config as checkpointing  # noqa: E402
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config  # noqa: E402
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig  # noqa: E402

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
    """Make an engine, and compare the degrees that it has found."""
    given = json.loads(case["text"])
    if deepspeed.comm.is_initialized():
        deepspeed.comm.destroy_process_group()
    fake_ranks(case["world"])
    deepspeed.comm.init_distributed(dist_backend="fake", verbose=False)
    stages = given.get("pipeline", {}).get("stages", 1)
    if stages > 1:
        layers = [torch.nn.Linear(8, 8) for _ in range(stages)]
        model: Any = PipelineModule(layers=layers, num_stages=stages, partition_method="uniform", loss_fn=torch.sum)
    else:
        model = Toy()
    given["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    given["zero_force_ds_cpu_optimizer"] = False
    if "tensor_parallel" in given:
        given["tensor_parallel"]["partition_config"] = _CUTS
    engine, *_ = deepspeed.initialize(model=model, config=given)
    assert engine.dp_world_size == case["dp"], f"dp {engine.dp_world_size}, not {case['dp']}"
    assert engine.sequence_parallel_size == case["cp"], f"cp {engine.sequence_parallel_size}, not {case['cp']}"
    assert engine.gradient_accumulation_steps() * engine.train_micro_batch_size_per_gpu() * case["dp"] == case["batch"]
    if engine.autotp_size() <= 1:
        assert engine.train_batch_size() == case["batch"]
    assert max(1, engine.autotp_size()) == case["tp"]


def known() -> dict[str, str]:
    """Fields of the sections that are classes, and names of the rest that its code reads by name."""
    found = fields_of(AutoEPConfig, "expert_parallel.")
    sections = {"zero_optimization": DeepSpeedZeroConfig, "tensor_parallel": TPTrainingConfig}
    sections |= {"bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
    for section, model in sections.items():
        found |= {f"{section}.{f.alias or n}": kind_of(f.annotation) for n, f in model.model_fields.items()}
    offload = DeepSpeedZeroOffloadOptimizerConfig.model_fields.items()
    found |= {f"zero_optimization.offload_optimizer.{n}": kind_of(f.annotation) for n, f in offload}
    code = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (config, constants, checkpointing))
    code += Path(deepspeed.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r"[\"']([a-z_0-9]+)[\"']", code))
    return found | dict.fromkeys(names, "any")


if __name__ == "__main__":
    get_accelerator().is_fp16_supported = lambda: True  # nothing is computed
    logging.disable(logging.CRITICAL)
    judge(accept, known)
