from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import GPT, ChosenSeconds, graph_of, request_of
from traincast import Calibration, Strategy, load_cluster
from traincast.cluster.hardware import joined
from traincast.forecast import forecast
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.report.floor import floor_of
from traincast.report.outlook import Outlook
from traincast.strategy import lower

WIDE = Calibration(runtimes=("none",), unknown=3.0)


def test_the_floor_of_data_parallelism_is_its_flops_at_the_peak() -> None:
    request = request_of("dp=8", global_batch=4096)
    products = [op.flops * count for op, count in graph_of(GPT) if op.kind in MATRIX_KINDS]
    share = sum(products) * 4096 / 8  # with the scores that FlashAttention computes again
    assert floor_of(lower(request).plan, request.cluster) == pytest.approx(share / request.cluster.device.peak("bf16"))


def test_recomputed_products_count_and_the_busiest_stage_decides() -> None:
    plain, again = (request_of(f"dp=1,recompute={what}", global_batch=64) for what in ("none", "full"))
    floors = [floor_of(lower(request).plan, request.cluster) for request in (plain, again)]
    assert 1.2 * floors[0] < floors[1] < 1.4 * floors[0]
    cut = request_of("pp=2,num_microbatches=8", global_batch=64)
    assert 0.5 * floors[0] < floor_of(lower(cut).plan, cut.cluster) < 0.9 * floors[0]


def test_links_that_are_full_all_the_time_are_a_floor_as_well() -> None:
    request = request_of("dp=16", global_batch=16)
    slow = replace(request.cluster, inter_node=replace(request.cluster.inter_node, bandwidth=1e6))
    floor = floor_of(lower(replace(request, cluster=slow)).plan, slow)
    gradients = 4.0 * graph_of(GPT).num_parameters
    assert floor == pytest.approx(gradients / (1e6 * slow.nics_per_node), rel=1e-6)


def test_both_grains_have_one_floor() -> None:
    request = request_of("dp=2,tp=2,pp=2,num_microbatches=4,zero=1")
    floors = [floor_of(lower(request, grain=grain).plan, request.cluster) for grain in ("segment", "operator")]
    assert floors[0] == pytest.approx(floors[1], rel=1e-9)


def test_unlike_nodes_compute_each_at_its_own_peak() -> None:
    slow, fast = load_cluster("dgx-a100"), load_cluster("dgx-h100")
    request = replace(request_of("dp=16", global_batch=4096), cluster=joined([slow, fast]))
    plan = lower(request).plan
    assert floor_of(plan, request.cluster) == pytest.approx(floor_of(plan, slow.with_nodes(2)))


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp32"])
def test_no_calibration_widens_an_interval_to_more_than_the_peak(precision: str) -> None:
    request = request_of("dp=8", global_batch=4096, precision=precision)
    made = forecast(replace(request, cluster=replace(request.cluster, calibration=WIDE)))
    report = made.report
    assert report.low_s == report.floor_s == floor_of(made.lowered.plan, request.cluster)
    assert report.mfu * report.step_s / report.low_s <= 1.0 + 1e-9


def test_a_step_below_the_floor_is_raised_to_it_and_said() -> None:
    raised = Outlook(step_s=1.0, low_s=0.5, high_s=1.5).above(2.0)
    assert (raised.step_s, raised.low_s, raised.high_s) == (2.0, 2.0, 2.0)
    assert "would need 200% of the peak rates of devices or links" in raised.warnings[0]
    same = Outlook(step_s=3.0, low_s=0.5, high_s=4.0).above(2.0)
    assert (same.step_s, same.low_s, same.high_s, same.warnings) == (3.0, 2.0, 4.0, ())
    report = forecast(request_of("dp=8", global_batch=4096), cost_model=ChosenSeconds(lambda work: 1e-12)).report
    assert report.step_s == report.floor_s
    assert any("check the calibration and the figures of the device" in w for w in report.warnings)


def test_parameter_servers_do_not_reach_below_the_floor_either() -> None:
    report = forecast(request_of(Strategy(dp=4, servers=2), global_batch=4096)).report
    assert np.isfinite(report.floor_s)
    assert min(report.floor_s, report.step_s) <= report.low_s <= report.step_s
