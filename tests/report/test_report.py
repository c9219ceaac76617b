"""The report: figures that follow from others, sources, warnings, and plain values for JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.conftest import (
    CNN,
    GPT,
    SOURCES,
    AnalyticalCostModel,
    ChosenSeconds,
    devices,
    graph_of,
    request_of,
)
from traincast import load_cluster, predict
from traincast.forecast import forecast
from traincast.graph import OpKind, Phase
from traincast.report.figures import model_flops
from traincast.strategy import load_precision


def test_throughput_follows_from_the_step() -> None:
    report = forecast(request_of("dp=4", global_batch=32)).report
    assert report.samples_per_s == pytest.approx(32 / report.step_s, rel=1e-12)
    assert report.tokens_per_s == pytest.approx(32 * 128 / report.step_s, rel=1e-12)


def test_mfu_counts_the_models_own_products_against_the_peak_of_all_devices() -> None:
    request = request_of("dp=4", global_batch=32)
    report = forecast(request).report
    layers, hidden, seq, vocab = 4, 256, 128, 1000
    linear = layers * 24 * seq * hidden**2 + 2 * seq * hidden * vocab
    attention = layers * 4 * hidden * seq * (seq + 1) / 2
    assert model_flops(graph_of(GPT)) == pytest.approx(3 * (linear + attention), rel=1e-12)
    peak = 4 * request.cluster.device.peak("bf16")
    assert report.mfu == pytest.approx(3 * (linear + attention) * 32 / report.step_s / peak, rel=1e-12)
    assert 0 < report.mfu < 1


def test_recomputation_does_not_raise_the_model_flops() -> None:
    plain, again = (forecast(request_of(f"recompute={r}", global_batch=16)).report for r in ("none", "full"))
    assert again.step_s > plain.step_s
    assert again.mfu * again.step_s == pytest.approx(plain.mfu * plain.step_s, rel=1e-12)


def test_the_report_says_what_was_asked() -> None:
    report = forecast(request_of("dp=2,tp=2,zero=1", global_batch=32, runtime="megatron")).report
    assert (report.model, report.runtime, report.precision) == (GPT, "megatron", "bf16")
    assert report.strategy == "dp=2,tp=2,zero=1"
    assert (report.num_devices, report.global_batch, report.micro_batch) == (4, 32, 16)
    assert report.num_parameters == graph_of(GPT).num_parameters
    assert "1 × 4" in report.cluster


def test_the_fullest_stage_decides_whether_it_fits() -> None:
    made = forecast(request_of("pp=4,num_microbatches=8"))
    assert made.report.peak_memory_bytes == max(m.total for m in made.lowered.memory)
    assert made.report.fits
    small = replace(devices(4).device, memory_bytes=made.report.peak_memory_bytes * 0.999)
    tight = replace(made.request, cluster=replace(devices(4), device=small))
    report = forecast(tight).report
    assert not report.fits
    assert any(w.startswith("may not fit: ") and "85 % is required" in w for w in report.warnings)


def test_shares_of_sources_add_up_to_one() -> None:
    physics = forecast(request_of("dp=2"), cost_model=AnalyticalCostModel()).report
    assert physics.estimated_by == {"measured": 0.0, "learned": 0.0, "analytical": 1.0}
    known = forecast(request_of("dp=2"), cost_model=ChosenSeconds(lambda _: 1.0)).report
    assert known.estimated_by == {"measured": 0.0, "learned": 0.0, "analytical": 1.0}


def test_carried_times_are_a_source_only_where_there_are_some() -> None:
    class Carried:
        """All times as the analytical cost model's, but carried over from other sizes."""

        def estimate(self, works, cluster):  # type: ignore[no-untyped-def]
            found = AnalyticalCostModel().estimate(works, cluster)
            return replace(found, source=found.source * 0 + SOURCES.index("carried"))

    report = forecast(request_of("dp=2"), cost_model=Carried()).report
    assert tuple(report.estimated_by) == SOURCES
    assert report.estimated_by["carried"] > 0.9
    assert sum(report.estimated_by.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("grain", ["segment", "operator"])
def test_a_mixed_estimate_is_shared_out_by_time(grain: str) -> None:
    class Mixed:
        """Products measured at one second each, all else analytical at none."""

        def estimate(self, works, cluster):  # type: ignore[no-untyped-def]
            import numpy as np

            product = np.array([getattr(w, "kind", None) is OpKind.GEMM for w in works])
            update = np.array([getattr(w, "phase", None) is Phase.OPTIMIZER for w in works])
            found = AnalyticalCostModel().estimate(works, cluster)
            seconds = np.where(product, 1.0, np.where(update, 10.0, 0.0))
            return replace(found, seconds=seconds, source=np.where(product, 0, 2).astype(np.int8))

    report = forecast(request_of("dp=1"), cost_model=Mixed(), grain=grain).report  # type: ignore[arg-type]
    products = sum(n for op, n in graph_of(GPT) if op.kind is OpKind.GEMM)
    assert report.estimated_by["measured"] == pytest.approx(products / (products + 10), rel=1e-12)


def test_a_dtype_that_the_device_lacks_is_warned_about() -> None:
    request = replace(request_of("dp=1"), precision=load_precision("fp8"))
    assert any("no fp8" in w for w in forecast(request).report.warnings)
    assert not any("no bf16" in w for w in forecast(request_of("dp=1")).report.warnings)


def test_a_report_is_plain_values() -> None:
    report = predict(graph_of(GPT), cluster=devices(4), global_batch=16, strategy="dp=2,tp=2", steps=10).report
    data = json.loads(json.dumps(report.to_dict()))
    for key in (
        "step_s low_s high_s samples_per_s tokens_per_s mfu compute_s exposed_communication_s bubble_s optimizer_s "
        "peak_memory_bytes memory fits job_s cost estimated_by warnings ranks critical_path"
    ).split():
        assert key in data
    assert set(data["memory"]) == {"weights", "gradients", "optimizer", "activations", "other"}
    assert data["step_s"] == report.step_s
    assert data["job_s"] == data["job"]["job_s"]
    assert data["ranks"][0]["compute_s"] == report.ranks[0].breakdown.compute_s


def test_without_a_strategy_one_that_fits_is_chosen() -> None:
    report = predict("gpt2", cluster="dgx-a100:1", global_batch=64, use_cache=True).report
    assert report.fits
    assert report.num_devices == 8


def test_habits_follow_the_model_and_the_device() -> None:
    words = predict(graph_of(GPT), cluster=devices(1), global_batch=4).report
    images = predict(graph_of(CNN), cluster=devices(1), global_batch=4).report
    assert (words.runtime, words.precision) == ("megatron", "bf16")
    assert (images.runtime, images.precision) == ("pytorch", "amp")
    old = predict(graph_of(GPT), cluster=load_cluster("dgx-1-v100"), global_batch=8).report
    assert old.precision == "fp16"


def test_the_detailed_timeline_agrees_with_the_report() -> None:
    made = predict(graph_of(GPT), cluster=devices(8), global_batch=16, strategy="dp=2,tp=2,pp=2,mbs=2")
    assert made.detailed().step_s == pytest.approx(made.report.step_s, rel=1e-9)
    assert made.detailed(all_ranks=True).step_s == made.detailed().step_s
