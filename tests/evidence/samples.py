"""Runs made up for the tests of evidence."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from traincast.evidence import PublishedRun, Traits

GPT: Traits = Traits(
    model="gpt",
    kind="language",
    parameters=8e9,
    active_parameters=8e9,
    layers=32,
    tokens=4096,
    device="h100-sxm5-80gb",
    vendor="nvidia",
    architecture="hopper",
    power_w=700.0,
    devices=64,
    nodes=8,
    strategy="dp=64,zero=3",
    dp=64,
    tp=1,
    pp=1,
    cp=1,
    ep=1,
    virtual_stages=1,
    zero=3,
    replicas=64,
    sharded=64,
    tensor_nodes=1,
    sequence_parallel=False,
    recompute="none",
    offload="",
    servers=0,
    precision="bf16",
    products="bf16",
    runtime="fsdp",
    micro_batch=1,
    global_batch=256,
)
"""A language model of 8 B on 64 H100, sharded over all of them."""


def run_of(*, source: str = "lab", measured_s: float = 2.0, predicted_s: float = 2.0, **changes: Any) -> PublishedRun:
    """Return a run like :data:`GPT` but for ``changes``."""
    return PublishedRun(source=source, traits=replace(GPT, **changes), measured_s=measured_s, predicted_s=predicted_s)
