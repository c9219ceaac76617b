"""Throughputs that Gavel's authors published, against forecasts of their workloads.

Steps per second on one GPU, from simulation_throughputs.json of github.com/stanford-futuredata/gavel (MIT licence;
Narayanan et al., OSDI 2020). Nothing in Traincast was fitted to them. The bounds are wide where the host takes part of
the time: the hosts are not described, and those of P100 and K80 are others than that of V100.
"""

from __future__ import annotations

from functools import cache

import pytest

from traincast import predict
from traincast.scheduling.estimates.stand_ins import StandIns, load_stand_ins
from traincast.scheduling.sharing.step_times import node_of

STEPS_PER_S = {
    ("V100", "ResNet-50", 32): (7.787, 0.6, 1.1),
    ("V100", "ResNet-50", 128): (2.497, 0.7, 1.1),
    ("P100", "ResNet-50", 128): (1.584, 0.7, 1.1),
    ("K80", "ResNet-50", 32): (1.237, 0.6, 1.1),
    ("V100", "ResNet-18", 128): (17.995, 0.6, 1.1),
    ("V100", "ResNet-18", 256): (10.300, 0.6, 1.1),
    ("V100", "LM", 20): (64.74, 0.5, 1.1),
    ("V100", "LM", 80): (28.24, 0.5, 1.1),
    ("V100", "Recommendation", 512): (23.32, 0.4, 2.5),
    ("V100", "Recommendation", 8192): (2.842, 0.4, 2.5),
    ("P100", "Recommendation", 2048): (16.60, 0.4, 2.5),
    ("K80", "Recommendation", 2048): (10.44, 0.4, 2.5),
    ("V100", "CycleGAN", 1): (4.426, 0.5, 1.1),
}
"""Steps per second, and the least and largest ratio of the forecast step to the measured one."""


@cache
def stand_ins() -> StandIns:
    return load_stand_ins("gavel")


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("gpu", "model", "batch"), STEPS_PER_S)
def test_gavels_workloads_are_forecast_within_their_bounds(gpu: str, model: str, batch: int) -> None:
    measured, least, most = STEPS_PER_S[gpu, model, batch]
    one = stand_ins().models[model]
    step_s = predict(
        one.model,
        cluster=node_of(gpu, 1),
        global_batch=round(batch * one.samples),
        strategy="dp=1",
        precision=stand_ins().precision,
        runtime=stand_ins().runtime,
    ).report.step_s
    ratio = (step_s + one.host_sample_s * batch) * measured
    assert least < ratio < most, f"forecast over measured step is {ratio:.2f}"


def test_a_game_on_the_host_is_refused() -> None:
    refused = {name: one.refused for name, one in stand_ins().models.items() if one.refused}
    assert refused == {"A3C": "four processes play Pong on the host, and the GPU waits for them"}
