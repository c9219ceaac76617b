"""The whole job: time, cost and energy from a step, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import GPT, devices, graph_of
from traincast import JobForecast, JobSettings, RequestError, predict
from traincast.report.job import forecast_job

CLUSTER = replace(
    devices(8), storage_bandwidth=1e9, price_per_node_hour=36.0, node_power_w=0.0, device=devices(8).device
)


def job(**changes: Any) -> JobForecast:
    values: dict[str, Any] = {
        "num_steps": 1000,
        "step_s": 2.0,
        "busy": 1.0,
        "forward_share": 0.5,
        "state_bytes": 10e9,
        "samples_per_step": 64,
        "tokens_per_sample": 1000,
        "cluster": CLUSTER,
        "settings": JobSettings(),
        **changes,
    }
    return forecast_job(**values)


def test_the_parts_of_a_job_add_up() -> None:
    made = job()
    assert made.steps_s == 2000.0
    assert made.startup_s == 60.0 + 10.0  # set-up, and ten gigabytes from storage
    assert made.checkpoints_s == pytest.approx(2000 / 1800 * 10.0)
    assert made.evaluation_s == 1 * 20 * 2.0 * 0.5
    assert made.data_loading_s == pytest.approx(64 * 1000 * 4 / 1e9)  # the first batch; the others hide
    parts = made.startup_s + made.data_loading_s + made.steps_s + made.checkpoints_s + made.evaluation_s
    assert made.job_s == pytest.approx(parts, rel=1e-12)
    assert made.to_dict()["job_s"] == made.job_s


def test_cost_is_the_price_of_the_nodes_for_as_long_as_the_job_runs() -> None:
    assert job().cost == pytest.approx(36.0 * job().job_s / 3600, rel=1e-12)
    per_device = replace(CLUSTER, price_per_node_hour=0.0, device=replace(CLUSTER.device, price_per_hour=2.0))
    assert job(cluster=per_device).cost == pytest.approx(8 * 2.0 * job().job_s / 3600, rel=1e-12)


def test_busy_devices_draw_their_rating_and_idle_ones_less() -> None:
    rating = 8 * CLUSTER.device.tdp_w
    assert job(busy=1.0).energy_j == pytest.approx(rating * job().job_s, rel=1e-12)
    assert job(busy=0.0).energy_j == pytest.approx(0.3 * rating * job().job_s, rel=1e-12)


def test_more_nodes_take_longer_to_start_and_read_faster() -> None:
    wide = replace(CLUSTER, num_nodes=8)
    assert job(cluster=wide).startup_s == 60.0 + 3 * 15.0 + 10.0 / 8


def test_loading_that_is_slower_than_the_step_shows() -> None:
    slow = replace(CLUSTER, storage_bandwidth=1e5)
    loading = 64 * 1000 * 4 / 1e5
    assert job(cluster=slow, state_bytes=0.0).data_loading_s == pytest.approx(loading + 1000 * (loading - 2.0))


def test_images_are_larger_than_tokens() -> None:
    assert job(tokens_per_sample=0).data_loading_s == pytest.approx(64 * 120e3 / 1e9)


def test_a_short_job_still_writes_its_last_checkpoint_and_is_not_evaluated() -> None:
    short = job(num_steps=10)
    assert short.checkpoints_s == 10.0
    assert short.evaluation_s == 0.0


@pytest.mark.parametrize(
    ("asked", "steps"),
    [({"tokens": 128 * 16 * 10}, 10), ({"tokens": 128 * 16 * 10 + 1}, 11), ({"samples": 33}, 3), ({"steps": 7}, 7)],
)
def test_the_length_of_a_job_is_said_in_tokens_samples_or_steps(asked: dict[str, int], steps: int) -> None:
    made = predict(graph_of(GPT), cluster=devices(1), global_batch=16, strategy="micro_batch=16", **asked).report  # type: ignore[call-overload]
    assert made.job is not None
    assert made.job.num_steps == steps
    assert made.job.steps_s == pytest.approx(steps * made.step_s, rel=1e-12)


def test_without_a_length_there_is_no_job() -> None:
    assert predict(graph_of(GPT), cluster=devices(1), global_batch=16, strategy="mbs=16").report.job is None


def test_two_lengths_are_one_too_many_and_images_have_no_tokens() -> None:
    with pytest.raises(RequestError, match="tokens and steps are given"):
        predict(graph_of(GPT), cluster=devices(1), global_batch=16, strategy="mbs=16", tokens=5, steps=5)
    with pytest.raises(RequestError, match="has no tokens: give samples or steps"):
        predict(graph_of("resnet-cifar:layers=20"), cluster=devices(1), global_batch=16, strategy="mbs=16", tokens=5)
