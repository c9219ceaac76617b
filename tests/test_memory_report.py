"""What a forecast says of memory: over time, what makes its peak, and what would make it fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast import AnalyticalCostModel, Report, load_cluster, predict

GPT = "gpt:layers=8,hidden=512,heads=8,vocab=2000,seq=512"


def report(strategy: str, *, memory: float = 80e9) -> Report:
    cluster = load_cluster("dgx-a100")
    small = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
    return predict(
        GPT, cluster=small, global_batch=32, strategy=strategy, cost_model=AnalyticalCostModel(), runtime="megatron"
    ).report  # fmt: skip


@pytest.mark.parametrize(
    "strategy",
    [
        "dp=8,micro_batch=2",
        "dp=2,pp=4,micro_batch=1",
        "dp=2,pp=4,micro_batch=1,schedule=zb-v",
        "dp=8,zero=3,micro_batch=2",
    ],
)
def test_the_peak_is_the_highest_moment_of_the_fullest_stage(strategy: str) -> None:
    said = report(strategy)
    assert max(m.total for m in said.memory_over_time) == pytest.approx(said.peak_memory_bytes, rel=1e-9)
    stages = {r.stage: r.memory.total for r in said.ranks}
    assert stages[said.fullest_stage] == max(stages.values())
    assert sum(said.memory.parts.values()) == pytest.approx(said.memory.total, rel=1e-9)
    sizes = [t.nbytes for t in said.peak_tensors]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= said.memory.activations * (1 + 1e-9)


def test_what_does_not_fit_says_what_is_missing_and_what_helps() -> None:
    needed = report("dp=8,micro_batch=4").peak_memory_bytes
    said = report("dp=8,micro_batch=4", memory=0.8 * needed)
    (warning,) = [w for w in said.warnings if w.startswith("does not fit")]
    assert not said.fits
    assert "more than the" in warning
    assert "fits with" in warning


def test_what_nothing_makes_fit_says_so() -> None:
    (warning,) = [w for w in report("dp=8,micro_batch=4", memory=1e6).warnings if w.startswith("does not fit")]
    assert "no change of one or two settings" in warning


def test_what_fits_says_nothing() -> None:
    assert not [w for w in report("dp=8,micro_batch=4").warnings if "fit" in w]
