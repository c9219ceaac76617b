"""Driple's three questions."""

from __future__ import annotations

import math

import pytest

from tests.conftest import CNN, GPT, AnalyticalCostModel, graph_of
from tests.resources.told import told
from traincast import Forecast, RequestError, ResourceUse, UnknownNameError, predict, resources_of
from traincast.resources.whatif import SettingChange, change_of, changed_request, what_if


def forecast(strategy: str = "dp=16", *, model: str = GPT, cluster: str = "dgx-a100:2", batch: int = 64) -> Forecast:
    return predict(
        graph_of(model), cluster=cluster, strategy=strategy, global_batch=batch, cost_model=AnalyticalCostModel()
    )


def test_another_gpu_changes_the_device_and_nothing_else() -> None:
    answer = what_if(forecast(), SettingChange(gpu="h100-sxm5-80gb"), hz=None)
    after = answer.after.request
    assert after.cluster.device.name == "h100-sxm5-80gb"
    assert after.cluster.inter_node == answer.before.request.cluster.inter_node
    assert after.strategy.dp == 16
    assert answer.after.report.step_s < answer.before.report.step_s
    sent = [
        each.curves.values["send"].mean() * each.curves.step_s for each in (answer.drawn_before, answer.drawn_after)
    ]
    assert sent[0] == pytest.approx(sent[1], rel=1e-6)


def test_other_numbers_of_servers_and_workers_keep_the_batch_of_each_worker() -> None:
    before = forecast("dp=8,servers=2,server_nodes=1", model=CNN)
    after = changed_request(before.request, SettingChange(servers=4, workers=16))
    assert (after.strategy.servers, after.strategy.dp, after.strategy.server_nodes) == (4, 16, 1)
    assert (after.global_batch, after.cluster.num_nodes) == (128, 3)


def test_no_servers_means_that_workers_exchange_gradients_themselves() -> None:
    answer = what_if(forecast("dp=16,servers=2", model=CNN), SettingChange(servers=0))
    assert answer.after.servers is None
    assert answer.after.report.optimizer_s > 0.0
    assert answer.before.servers is not None


def test_fewer_workers_on_one_node_have_a_part_of_it() -> None:
    after = changed_request(forecast("dp=8", cluster="dgx-a100:1").request, SettingChange(workers=2))
    assert (after.cluster.num_nodes, after.cluster.devices_per_node, after.global_batch) == (1, 2, 16)


def test_another_batch_may_change_the_micro_batch() -> None:
    before = forecast(batch=64)
    assert changed_request(before.request, SettingChange(global_batch=256)).strategy.num_microbatches == 1
    kept = changed_request(before.request, SettingChange(global_batch=256), keep_micro_batch=True)
    assert kept.strategy.num_microbatches == 4
    answer = what_if(before, SettingChange(global_batch=256))
    data = answer.to_dict()
    assert data["after"]["global_batch"] == 256
    assert data["step_change"] == pytest.approx(answer.after.report.step_s / answer.before.report.step_s - 1.0)
    assert set(data["changes"]) == {"compute", "memory", "receive", "send"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (SettingChange(workers=20), "do not fill nodes of 8"),
        (SettingChange(workers=0), "from 1 worker"),
        (SettingChange(servers=-1), "from 0 servers"),
    ],
)
def test_what_cannot_be_is_refused(change: SettingChange, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        changed_request(forecast().request, change)


def test_a_question_must_change_something_that_exists() -> None:
    with pytest.raises(RequestError, match="nothing changes"):
        SettingChange()
    with pytest.raises(UnknownNameError):
        changed_request(forecast().request, SettingChange(gpu="h10"))
    with pytest.raises(RequestError, match="no multiple"):
        changed_request(forecast(batch=128).request, SettingChange(global_batch=130), keep_micro_batch=True)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("bursts", 2.0, 1.0), ("bursts", 3.0, 0.5), (0.5, -0.5)),
        (("busy", 5.0, 0.0), ("busy", 4.0, 0.0), (0.0, 0.0)),
        (("bursts", 2.0, 1.0), ("busy", 5.0, 0.0), (None, None)),
        (("idle", 0.0, 5.0), ("bursts", 1.0, 1.0), (None, None)),
    ],
)
def test_durations_change_only_where_there_are_bursts(
    before: tuple[str, float, float], after: tuple[str, float, float], expected: tuple[float | None, float | None]
) -> None:
    """A resource that is always busy is so for as long as one looks, which is no figure of the job."""
    one, other = (
        ResourceUse(burst_amount=0.5, burst_s=burst_s, idle_s=idle_s, pattern=pattern)  # type: ignore[arg-type]
        for pattern, burst_s, idle_s in (before, after)
    )
    assert (change_of(one, other, "burst_s"), change_of(one, other, "idle_s")) == expected
    assert change_of(one, other, "burst_amount") == 0.0


def test_a_change_lies_in_its_range_and_sampling_widens_it() -> None:
    before = forecast("dp=16", model=GPT)
    answers = [what_if(before, SettingChange(gpu="h100-sxm5-80gb"), hz=hz) for hz in (None, 50_000.0)]
    for answer in answers:
        for name, changes in answer.changes.items():
            for figure, change in changes.items():
                ends = answer.ranges[name][figure]
                assert ends is None or change is None or ends[0] - 1e-9 <= change <= ends[1] + 1e-9
    exact, sampled = (answer.ranges["send"]["burst_amount"] for answer in answers)
    assert exact is not None and sampled is not None
    assert sampled[1] - sampled[0] > 0.15 > exact[1] - exact[0]
    assert answers[1].to_dict()["change_ranges"]["send"]["burst_amount"] == sampled


def test_sampled_figures_have_at_least_the_spread_that_was_measured() -> None:
    made = forecast("dp=16", model=GPT)
    exact, sampled = (resources_of(made, hz=hz) for hz in (None, 50_000.0))
    for drawn, least in ((exact, 0.0), (sampled, 0.14)):
        use, low, high = drawn.uses["memory"], drawn.low["memory"], drawn.high["memory"]
        assert use.pattern == "bursts"
        assert told(low.burst_s) <= told(use.burst_s) * math.exp(-least) * (1 + 1e-9)
        assert told(high.burst_s) >= told(use.burst_s) * math.exp(least) * (1 - 1e-9)
        assert told(high.burst_amount) <= 1.0
    assert exact.high["memory"].burst_s == max(told(each["memory"].burst_s) for each in (exact.uses, *exact.ends))
