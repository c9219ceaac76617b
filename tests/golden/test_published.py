"""Figures that others have published, against our forecasts: a few, small, credited.

The bound is generous (20 %). When these figures were added, our errors were +1.0, −4.7, −1.6, −5.5, −5.5 and
−0.7 % for the six runs of Korthikanti et al., and −4.6, −3.4, −4.4, −3.9, −4.4 and −5.5 % for the six of
Narayanan et al., in the order below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from traincast import load_cluster, load_runtime, predict
from traincast.ask import Training
from traincast.forecast import estimates_of
from traincast.graph.zoo import card
from traincast.resolve import resolve
from traincast.simulate import simulate
from traincast.strategy import lower, parse_strategy

BOUND = 0.20


@dataclass(frozen=True)
class Published:
    """One run on A100s of 80 GB, eight to a node: who said so, what ran, and the seconds of a step."""

    model: str
    strategy: str
    nodes: int
    global_batch: int
    step_s: float


KORTHIKANTI = {
    # Korthikanti et al. 2022, arXiv:2205.05198, tables 3 and 5: full recomputation against sequence
    # parallelism with selective recomputation.
    "22B full": Published("megatron-22b", "tp=8,micro_batch=4,recompute=full", 1, 4, 1.42),
    "22B selective": Published("megatron-22b", "tp=8,sp,micro_batch=4,recompute=selective", 1, 4, 1.10),
    "175B full": Published("megatron-175b", "tp=8,pp=8,vp=3,micro_batch=1,recompute=full", 8, 64, 18.13),
    "175B selective": Published("megatron-175b", "tp=8,pp=8,vp=3,sp,micro_batch=1,recompute=selective", 8, 64, 13.75),
    "530B selective": Published(
        "megatron-530b", "tp=8,pp=35,vp=3,sp,micro_batch=1,recompute=selective", 35, 280, 37.83
    ),
    "1T selective": Published("megatron-1t", "tp=8,pp=64,sp,micro_batch=1,recompute=selective", 64, 512, 71.49),
}


def narayanan(model: str, strategy: str, nodes: int, global_batch: int, teraflops: float) -> Published:
    """Narayanan et al. 2021, arXiv:2104.04473, table 1, whose FLOPs (equation 3) count recomputation.

    F = 96·B·s·l·h²·(1 + s/6h + V/16lh); a step takes F / (devices · achieved FLOP/s). The table does not give
    micro batches: those here are ours, the largest power of two that fits.
    """
    p = card(model).parameters
    s, layers, h, vocab = p["seq"], p["layers"], p["hidden"], p["vocab"]
    flops = 96 * global_batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return Published(model, strategy + ",recompute=full", nodes, global_batch, flops / (8 * nodes * teraflops * 1e12))


NARAYANAN = {
    "1.7B on 32": narayanan("megatron-1.7b", "dp=32,micro_batch=4", 4, 512, 137),
    "7.5B on 128": narayanan("megatron-7.5b", "dp=32,tp=4,micro_batch=4", 16, 512, 142),
    "18.4B on 256": narayanan("megatron-18b", "dp=32,tp=8,micro_batch=4", 32, 1024, 135),
    "39.1B on 512": narayanan("megatron-39b", "dp=32,tp=8,pp=2,micro_batch=2", 64, 1536, 138),
    "145.6B on 1536": narayanan("megatron-145b", "dp=24,tp=8,pp=8,micro_batch=1", 192, 2304, 148),
    "1T on 3072": narayanan("megatron-1t", "dp=6,tp=8,pp=64,micro_batch=1", 384, 3072, 163),
}


def forecast_seconds(run: Published) -> float:
    cluster = load_cluster("dgx-a100").with_nodes(run.nodes)
    # In 2021 and 2022 Megatron-LM launched the products of attention one by one, with a fused softmax.
    runtime = load_runtime("megatron").patched(kernels={"attention": "unfused"})
    made = predict(
        run.model,
        cluster=cluster,
        strategy=run.strategy,
        global_batch=run.global_batch,
        runtime=runtime,
        precision="bf16",
        use_cache=True,
    )
    return made.report.step_s


@pytest.mark.long(guard="test_a_published_step_is_met")
def test_the_published_run_of_deepseek_v3_is_met_under_the_default_runtime() -> None:
    """DeepSeek-V3 report, arXiv:2412.19437, sections 1, 3.2 and 4.2: 14.8 T tokens in 2.664 M H800 hours.

    A batch has 15,360 sequences of 4,096 tokens, apart from the first 3 % of the tokens. With 2,048 devices that makes
    19.9 s per step. Our error was +13 % when this was added; without DualPipe's overlap it was +83 %.
    """
    batch, seq = 15360, 4096
    published_s = 2.664e6 * 3600 / 2048 / (14.8e12 / (batch * seq))
    assert published_s == pytest.approx(19.9, rel=1e-3)
    request = resolve(
        Training(
            "deepseek-v3+mtp", cluster="hgx-h800:256", global_batch=batch, seq=seq, precision="fp8", use_cache=True
        )
    ).request
    assert request.runtime.name == "megatron-bridge"
    words = "dp=128,pp=16,ep=64,zero=1,schedule=dualpipe,micro_batch=1"
    request = replace(request, strategy=parse_strategy(words, global_batch=batch))
    plan = lower(request).plan
    step_s = simulate(plan, estimates_of(request, plan.works).seconds).step_s
    assert step_s == pytest.approx(published_s, rel=BOUND)


@pytest.mark.long(but=5)
@pytest.mark.parametrize("name", [*KORTHIKANTI, *NARAYANAN])
def test_a_published_step_is_met(name: str) -> None:
    run = {**KORTHIKANTI, **NARAYANAN}[name]
    assert forecast_seconds(run) == pytest.approx(run.step_s, rel=BOUND)
