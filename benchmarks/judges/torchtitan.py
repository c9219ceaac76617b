"""torchtitan's judge: its parser reads the file, and its own code cuts and spreads the model, on the meta device."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.judges.common import fake_ranks, fields_of, judge, stand_in

stand_in("triton", "torchao", "tensorboard", "datasets", "tokenizers", "huggingface_hub", "torchdata")

import torch  # noqa: E402
import torchtitan.protocols.train_spec as specs  # noqa: E402
from torch.distributed.pipelining.schedules import get_schedule_class  # noqa: E402
from torchtitan.config import ConfigManager, JobConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, parallel_dims  # noqa: E402
from torchtitan.models import _supported_models  # noqa: E402

parallel_dims.device_type = "cpu"


_SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBVZeroBubble")
assert all(get_schedule_class(name) for name in _SCHEDULES)


def accept(case: dict[str, Any]) -> None:
    """Do what ``train.py`` does before weights are made: meshes, model, stages, sharding, schedule."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(case["text"], encoding="utf-8")
        job = ConfigManager().parse_args([f"--job.config_file={path}"])
    spread = job.parallelism
    fake_ranks(case["world"])
    dims = ParallelDims(
        dp_shard=spread.data_parallel_shard_degree,
        dp_replicate=spread.data_parallel_replicate_degree,
        cp=spread.context_parallel_degree,
        tp=spread.tensor_parallel_degree,
        pp=spread.pipeline_parallel_degree,
        ep=spread.expert_parallel_degree,
        etp=spread.expert_tensor_parallel_degree,
        world_size=case["world"],
    )
    dims.build_mesh()
    replicas = dims.dp_replicate * dims.dp_shard
    assert replicas == case["dp"], f"dp {replicas}, not {case['dp']}"
    assert job.training.global_batch_size == case["batch"]
    assert job.training.global_batch_size % (job.training.local_batch_size * replicas) == 0
    _keeps_its_precision(job, dims)
    _spread(job, dims, case)


def _keeps_its_precision(job: Any, dims: Any) -> None:
    """Without FSDP, torchtitan warns and runs tensor and pipeline parallelism in fp32."""
    mixed = job.training.mixed_precision_param != "float32"
    assert not mixed or dims.fsdp_enabled or not (dims.tp_enabled or dims.pp_enabled), "mixed precision is disabled"
    assert not job.training.enable_cpu_offload or dims.fsdp_enabled, "nothing is offloaded"


def _spread(job: Any, dims: Any, case: dict[str, Any]) -> None:
    spec = specs.get_train_spec(job.model.name)
    found = spec.model_args[job.model.flavor] if case["known"] else _like(spec, case)
    found.update_from_config(job)
    with torch.device("meta"):
        model = spec.model_cls(found)
    if case["known"]:
        count = sum(weight.numel() for weight in model.parameters())
        assert abs(count / case["parameters"] - 1) < 0.02, f"{count} parameters, not {case['parameters']}"
    overlaps = job.parallelism.enable_async_tensor_parallel
    assert not overlaps or job.compile.enable, "overlapped tensor traffic asks for the compiler"
    job.parallelism.enable_async_tensor_parallel = False
    job.compile.enable = False  # loading PyTorch's compiler takes seconds, and nothing here needs it
    if dims.pp_enabled:
        if not spec.pipelining_fn:
            raise RuntimeError(f"{job.model.name} does not support pipelining")
        _, parts, *_ = spec.pipelining_fn(
            model, dims, job, torch.device("cpu"), found, spec.parallelize_fn, torch.nn.functional.cross_entropy
        )
        assert len(parts) == case["chunks"], f"{len(parts)} chunks per rank, not {case['chunks']}"
    else:
        spec.parallelize_fn(model, dims, job)


def _like(spec: Any, case: dict[str, Any]) -> Any:
    """Return a flavor that the user would add: the smallest existing one, with the model's number of layers."""
    name = "debugmodel_moe" if case["experts"] and "debugmodel_moe" in spec.model_args else "debugmodel"
    return replace(spec.model_args[name], n_layers=case["layers"])


def known() -> dict[str, str]:
    """All fields of a job, with the names of models and of schedules."""
    models = "|".join(name for name in _supported_models if name != "flux")
    return fields_of(JobConfig) | {"model.name": models, "parallelism.pipeline_parallel_schedule": "|".join(_SCHEDULES)}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    judge(accept, known)
