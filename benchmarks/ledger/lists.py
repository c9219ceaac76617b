"""The lists that asks are drawn from."""

from __future__ import annotations

from typing import Any, Final

GPT: Final = "gpt:layers=4,hidden=256,heads=8,vocab=1000,seq=128"
MODELS: Final = {
    "gpt": GPT,
    "llama": "llama:layers=4,hidden=256,heads=8,kv_heads=4,vocab=1000,seq=128",
    "moe": "moe:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=128",
}
CONTRACT_MODELS: Final = (
    "gpt:layers=4,hidden=256,heads=4,vocab=1000,seq=1024",
    "gpt:layers=8,hidden=256,heads=4,vocab=8000,seq=256",
    "moe:layers=4,hidden=256,heads=4,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=256",
    "resnet18",
)
CONTRACT_CLUSTERS: Final = (
    ("dgx-a100:1", 8),
    ("dgx-a100:2", 16),
    ("h100-sxm5-80gb-nanotron-ultrascale:2", 16),
    ("gb200-nvl72:1x8", 8),
    ("dgx-a100:1+dgx-h100:1", 16),
)
BASES: Final = (
    "",
    "",
    "context=ring",
    "sync_each",
    "prefetch=0",
    "prefetch=2",
    "compression=0.25",
    "offload=optimizer",
    "offload=activations",
)
RUNTIMES: Final = tuple(
    """ddp deepspeed dgl fsdp gloo hf-trainer litgpt maxtext megatron-1 megatron-2 megatron-bridge megatron-deepspeed
    megatron mindspore mxnet nanotron neuronx-1 neuronx oneflow optimum-habana-deepspeed optimum-habana paddle peft
    pytorch-1 pytorch tensorflow-ps tensorflow-xla tensorflow torchtitan""".split()
)
FRAMEWORKS: Final = ("megatron", "torchtitan", "deepspeed", "nanotron")
PRECISIONS: Final = ("fp32", "tf32", "amp", "amp-bf16", "fp16", "bf16", "pure-bf16", "fp8", "nvfp4")
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "dualpipe")
OPTIMIZERS: Final = ("adamw", "adam", "lamb", "sgd", "sgd-plain", "adamw8bit", "paged-adamw", "paged-adamw8bit")

_DEGREES: Final = (
    ("dp=1", 1), ("dp=3", 3), ("dp=4", 4), ("dp=16", 16), ("tp=3", 3), ("tp=4", 4), ("cp=3", 3), ("cp=4", 4),
    ("dp=2,tp=2", 4), ("dp=2,cp=2,tp=2", 8),
)  # fmt: skip
_PIPELINES: Final = (
    ("pp=2", 2), ("pp=4", 4), ("pp=8", 8), ("dp=2,pp=2", 4), ("tp=2,pp=2", 4), ("dp=2,tp=2,pp=2", 8),
    ("dp=2,cp=2,pp=2", 8), ("dp=4,pp=4", 16),
)  # fmt: skip
_ORDERS: Final = (
    *(f"schedule={name}" for name in SCHEDULES),
    *(f"schedule={name},vp=2" for name in ("1f1b", "interleaved", "breadth-first", "gpipe", "zb-v")),
)
SPREADS: Final = (
    *_DEGREES,
    *((f"{degrees},{order}", ranks) for degrees, ranks in _PIPELINES for order in _ORDERS),
)
"""Ways to spread, and the ranks that each needs."""
MICROBATCHES: Final = ("num_microbatches=1", "num_microbatches=8", "micro_batch=1", "num_microbatches=3")
OPTIONS: Final = (
    "", "zero=1", "zero=2", "zero=3", "zero=1,shard=2", "zero=2,shard=2,sync_each", "zero=3,shard=2",
    "zero=3,reshard=false", "zero=3,prefetch=0", "zero=3,prefetch=2,reshard=false", "sp", "sp,zero=1",
    "sp,zero=3,recompute=full", "context=ring", "context=ring,zero=1", "recompute=full", "recompute=selective,zero=1",
    "recompute=full,recompute_every=2", "offload=optimizer", "offload=activations",
    "offload=optimizer+activations,zero=2", "compression=0.1", "compression=0.1,zero=3", "sync_each", "layers=1/3",
    "layers=1/1/1/1", "layers=1/2/1/0,zero=1", "ep=2", "ep=2,imbalance=1.5", "ep=4,imbalance=2,capacity=1.25,zero=1",
    "ep=2,zero=3", "ep=3", "ep=2,etp=2", "ep=2,recompute=full", "sp,ep=2,etp=2", "sp,ep=4,zero=2,shard=2", "sp,etp=1",
)  # fmt: skip
TUNINGS: Final[tuple[tuple[str | None, tuple[str, ...], str | None], ...]] = (
    ("rank=8,targets=attention", (), None),
    ("rank=8,targets=attention+mlp,dropout=0.1", (), "4"),
    ("rank=8,targets=all,compute=fp32", (), "8"),
    ("rank=8,targets=q+v,dtype=model", (), None),
    (None, ("embedding", "layers.[01]"), None),
    (None, ("layers.*.mlp",), "gptq"),
    ("rank=16", (), "4"),
    (None, ("nothing.here",), None),
)
"""``lora``, ``freeze`` and ``quantize``."""
SERVERS: Final = tuple(
    (strategy, ("dgx-a100:2x2", "dgx-a100:1x2+dgx-h100:1x2", "dgx-1-v100:4x1"))
    for strategy in (
        "dp=4,servers=1", "dp=4,servers=2", "dp=4,servers=3", "dp=4,servers=5,async", "dp=4,servers=2,async",
        "dp=4,servers=2,compression=0.1", "dp=4,servers=2,sync_each,num_microbatches=2", "dp=4,servers=2,placement=1",
        "dp=2,servers=2,server_nodes=1", "dp=2,servers=2,server_nodes=1,async", "dp=2,tp=2,servers=1",
        "dp=4,servers=2,zero=1",
    )
)  # fmt: skip
_ON_FOUR: Final = (
    "dp=4", "dp=2,pp=2,layers=2/2,num_microbatches=4", "pp=4,layers=1/1/1/1,micro_batch=2", "dp=4,zero=3",
    "dp=2,tp=2,sp,zero=1", "tp=4", "dp=2,cp=2", "dp=4,shares=2:1:1:2", "dp=2,tp=2,shares=3:1",
)  # fmt: skip
MIXED: Final = (
    ("dgx-a100:1x2+dgx-h100:1x2", _ON_FOUR),
    ("dgx-1-v100:1x2+dgx-h100:1x2", _ON_FOUR),
    ("dgx-a100:1x1+dgx-1-v100:1x3", _ON_FOUR),
    (
        "dgx-a100:1+dgx-a100:2x4",
        ("dp=16", "dp=4,tp=4", "dp=2,tp=4,pp=2", "dp=16,zero=3", "dp=4,pp=4,num_microbatches=4"),
    ),
    ("dgx-h100:1+dgx-1-v100:1", ("dp=16,num_microbatches=3", "dp=8,tp=2", "tp=16", "pp=16", "dp=2,tp=8,shares=2:1")),
)
CONDITIONS: Final[tuple[dict[str, Any], ...]] = (
    {"slow": ((3, 1.5),)},
    {"slow": ((0, 1.1), (5, 2.0), (7, 1.3))},
    {"jitter": 0.1, "seed": 3},
    {"busy_network": 0.5},
    {"interference": 0.2},
    {"share_links": True},
    {"slow": ((1, 2.0),), "jitter": 0.05, "seed": 1, "busy_network": 0.25, "share_links": True},
    {"jitter": 0.2, "interference": 0.1, "share_links": True},
    {"slow": ((99, 2.0),)},
    {"jitter": -1.0},
)
_BASE: Final = {"model": GPT, "cluster": "dgx-a100:1"}
REFUSED: Final[tuple[dict[str, Any], ...]] = (
    *(
        {"model": GPT, "cluster": f"dgx-a100:1x{ranks}", "strategy": strategy, "global_batch": 64}
        for ranks, strategy in (
            (3, "dp=3,num_microbatches=1"), (3, "tp=3"), (3, "cp=3"), (8, "pp=8,num_microbatches=8"),
            (2, "pp=2,layers=1/2,num_microbatches=8"), (2, "pp=2,schedule=dualpipe,num_microbatches=2"),
            (4, "pp=4,schedule=interleaved,vp=2,num_microbatches=2"), (2, "pp=2,schedule=gpipe,vp=2"),
            (4, "dp=4,shard=2"), (4, "dp=4,zero=1,shard=3"), (4, "dp=4,zero=2,reshard=false"),
            (4, "dp=4,recompute_every=2"), (4, "dp=4,compression=0"), (4, "dp=4,imbalance=0.5"), (4, "dp=4,ep=3"),
            (4, "dp=2,tp=2,ep=2"), (4, "dp=4,ep=4"), (8, "dp=64"), (1, "dp=x"), (1, "qq=3"), (8, "dp=4,dp=2"),
            (1, "zero=9"), (2, "schedule=nothing,pp=2"), (1, "recompute=some"), (1, "offload=everything"),
            (1, "context=star"), (1, "dp=0"), (1, "dp=-1"), (4, "dp=4,servers=2,zero=3"), (1, "async"),
            (8, "dp=8,shares=1:2"), (8, "dp=8,micro_batch=3"), (8, "dp=8,num_microbatches=5"),
            (8, "tables=sharded,dp=8"), (8, "dp=8,placement=3"),
        )
    ),
    {**_BASE, "global_batch": 0, "strategy": "dp=8"},
    {**_BASE, "global_batch": 10**10, "strategy": "dp=8"},
    {**_BASE, "global_batch": "64", "strategy": "dp=8"},
    {**_BASE, "global_batch": 63},
    {**_BASE, "global_batch": 64, "precision": "fp7"},
    {**_BASE, "global_batch": 64, "runtime": "nothing"},
    {**_BASE, "global_batch": 64, "runtime": "pytorch:release=1"},
    {**_BASE, "global_batch": 64, "runtime": "megatron-bridge:release=new"},
    {**_BASE, "global_batch": 64, "optimizer": "nothing"},
    {**_BASE, "global_batch": 64, "lora": "rank=0"},
    {**_BASE, "global_batch": 64, "lora": "targets=nothing"},
    {**_BASE, "global_batch": 64, "quantize": "3"},
    {**_BASE, "global_batch": 64, "tokens": 100, "steps": 10},
    {**_BASE, "global_batch": 64, "steps": 0},
    {**_BASE, "global_batch": 64, "strategy": "dp=8", "shard_rules": (("*", "diagonal"),)},
    {**_BASE, "global_batch": 64, "seq": 0},
    {"model": "nothing", "cluster": "dgx-a100:1", "global_batch": 64},
    {"model": "gpt:layers=x", "cluster": "dgx-a100:1", "global_batch": 64},
    {"model": "resnet50", "cluster": "nothing:1", "global_batch": 64},
    {"model": "resnet50", "cluster": "dgx-a100:0", "global_batch": 64},
    {"model": "resnet50", "cluster": "dgx-a100:1x9", "global_batch": 64},
    {"model": "resnet50", "cluster": "dgx-a100:1", "global_batch": 64, "strategy": "tp=8"},
    {"model": "resnet50", "cluster": "dgx-a100:1", "global_batch": 64, "seq": 128},
    {"model": "gpt3-175b", "cluster": "dgx-a100:1", "global_batch": 64},
    {"model": "gpt3-175b", "cluster": "dgx-a100:1", "global_batch": 64, "strategy": "dp=8"},
)  # fmt: skip
"""Asks that are refused, or forecast with a remedy since they do not fit."""
