"""Small runs that need no tracing and no table."""

from __future__ import annotations

from functools import cache

import pytest

from traincast import Request, ResourceUse
from traincast.estimate.inspector.grouping import Grouping
from traincast.fitting.inspector.fit import examples_of, types_of
from traincast.fitting.inspector.runs import ObservedRun, request_of
from traincast.fitting.inspector.train import RunExamples

MODELS = ("resnet18", "vgg11", "squeezenet", "gpt2", "bert-base", "alexnet")


@cache
def request_for(model: str, batch: int = 8, strategy: str = "dp=2") -> Request:
    """A request on two V100 of one server."""
    row = {"model": model, "global_batch": batch, "strategy": strategy, "device": "v100-pcie-16gb",
           "devices_per_node": 2, "precision": "fp32"}  # fmt: skip
    return request_of(row)


def toy_runs(count: int = 48) -> list[ObservedRun]:
    """Runs whose figures follow a simple law of their inputs, so that a network can learn them."""
    runs = []
    for number in range(count):
        model, batch = MODELS[number % len(MODELS)], 2 ** (1 + number % 5)
        request = request_for(model, batch)
        amount = 0.2 + 0.1 * (number % 5)
        use = ResourceUse(burst_amount=amount, burst_s=0.01 * batch, idle_s=0.005 * batch, pattern="bursts")
        busy = ResourceUse(burst_amount=1.0, burst_s=5.0, idle_s=0.0, pattern="busy")
        uses = {"compute": busy, "memory": use, "receive": use, "send": use}
        runs.append(
            ObservedRun(request=request, uses=uses, model=model, setting=f"batch {batch}", step_s=0.015 * batch)
        )
    return runs


@pytest.fixture(scope="session")
def toy_examples() -> RunExamples:
    """Examples of toy runs, in eight groups."""
    runs = toy_runs()
    return examples_of(runs, grouping=Grouping(method="uniform", groups=8), types=types_of(runs))
