"""No forecast promises what its devices cannot do: random requests, small models, the same in every run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from benchmarks.physics import judged

from tests.conftest import GPT, graph_of
from traincast import Calibration, Strategy, TraincastError, load_cluster
from traincast.ask import Training
from traincast.forecast import forecast
from traincast.resolve import resolve

PLACES = (
    "dgx-h100:1",
    "dgx-a100:2",
    "mi300x-platform",
    "dgx-1-v100:2",
    "pcie-t4",
    "h100-sxm5-80gb-nanotron-ultrascale:2",
)
DRAWS = 60


def test_random_requests_stay_above_what_physics_allows() -> None:
    rng = random.Random(0)
    seen: Counter[str] = Counter()
    while seen["forecast"] < DRAWS:
        cluster = load_cluster(rng.choice(PLACES))
        if rng.random() < 0.3:
            cluster = replace(cluster, calibration=Calibration(runtimes=("none",), unknown=rng.uniform(0.5, 3.0)))
        tp, pp, accumulate = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)), rng.choice((1, 4))
        dp = max(1, cluster.num_devices // (tp * pp))
        strategy = Strategy(
            dp=dp,
            tp=tp,
            pp=pp,
            num_microbatches=accumulate,
            zero=rng.choice((0, 1, 3)),
            recompute=rng.choice(("none", "selective", "full")),
            offload=rng.choice(((), ("optimizer",), ("activations",))),
        )
        try:
            request = resolve(
                Training(
                    graph_of(rng.choice((GPT, "resnet18"))),
                    cluster=cluster,
                    global_batch=dp * accumulate * rng.choice((1, 8, 64)),
                    precision=rng.choice(("fp32", "tf32", "amp", "bf16", "fp8")),
                    runtime=rng.choice(("pytorch", "megatron", "nanotron", "fsdp")),
                )
            ).request
            made = forecast(replace(request, strategy=strategy))
        except TraincastError:
            continue
        found = judged(made)
        assert not found.wrong, (found.wrong, made.report.cluster, made.report.strategy, made.report.precision)
        seen["forecast"] += 1
        seen["cut"] += found.cut
    assert seen["cut"] > 0, "some interval must have been cut, or nothing was tested"
