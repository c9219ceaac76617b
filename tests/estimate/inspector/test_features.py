"""Features of groups and settings: amounts add up, and units cancel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fitting.inspector.conftest import request_for
from traincast import Request, RequestError, capture
from traincast.estimate.inspector.amounts import PHASES, amounts_of, weights_of
from traincast.estimate.inspector.features import GROUP_FEATURES, SETTING_FEATURES, Inputs, inputs_of
from traincast.estimate.inspector.grouping import Grouping, group
from traincast.fitting.inspector.fit import batches_by_size, type_weights
from traincast.graph import Phase
from traincast.resources.inspected import setting_of


def inputs_for(groups: int, **changes: object) -> Inputs:
    """The input of ResNet-18 in a number of groups."""
    request = replace(request_for("resnet18"), **changes)  # type: ignore[arg-type]
    return inputs_of_request(request, Grouping(method="uniform", groups=groups))


def inputs_of_request(request: Request, grouping: Grouping) -> Inputs:
    """The input of a request; all types of operators weigh the same."""
    return inputs_of(request.graph, setting_of(request), grouping=grouping, weights={})


@pytest.mark.parametrize("model", ["resnet18", "gpt2", "vgg11"])
def test_amounts_add_up_to_those_of_the_graph(model: str) -> None:
    graph = capture(model)
    amounts = amounts_of(graph)
    assert (amounts.count * amounts.flops.sum(axis=0)).sum() == pytest.approx(graph.flops(), rel=1e-9)
    updated = (amounts.count * amounts.parameter_bytes).sum() / 4
    assert updated == pytest.approx(graph.num_trainable_parameters)


def test_every_update_follows_an_operator_of_backward() -> None:
    amounts = amounts_of(capture("resnet18"))
    update = amounts.phase == PHASES.index(Phase.OPTIMIZER)
    before = {int(target): int(source) for source, target in amounts.edges if update[target]}
    assert set(before) == set(np.flatnonzero(update).tolist())
    assert all(amounts.phase[source] == PHASES.index(Phase.BACKWARD) for source in before.values())


def test_frequent_types_weigh_less_and_unknown_types_most() -> None:
    weights = type_weights([amounts_of(capture("resnet18"))])
    assert weights["forward batch_norm"] < weights["forward pool"]
    known, unknown = weights_of(["forward pool", "forward scan"], weights)
    assert unknown > max(weights.values()) >= known


def test_seconds_of_groups_add_up_whatever_the_number_of_groups() -> None:
    at = GROUP_FEATURES.index("compute_s")
    few, many = inputs_for(4), inputs_for(20)
    assert (len(few.groups), len(many.groups)) == (4, 20)
    assert (10.0 ** few.groups[:, at]).sum() == pytest.approx((10.0 ** many.groups[:, at]).sum(), rel=1e-3)
    assert few.busy_s == many.busy_s
    assert np.array_equal(few.setting, many.setting)


def test_a_device_that_is_twice_as_fast_halves_the_seconds_of_computing() -> None:
    base = request_for("resnet18").cluster
    rates = {name: 2 * rate for name, rate in base.device.peak_flops.items()}
    fast = replace(base, device=replace(base.device, peak_flops=rates))
    at = GROUP_FEATURES.index("compute_s")
    difference = inputs_for(8).groups[:, at] - inputs_for(8, cluster=fast).groups[:, at]
    assert difference == pytest.approx(np.log10(2.0), abs=1e-5)


def test_more_workers_than_servers_make_the_exchange_longer() -> None:
    at = SETTING_FEATURES.index("exchange_s")
    settings = [
        inputs_of_request(request_for("resnet18", 8, strategy), Grouping()).setting[at]
        for strategy in ("dp=2,servers=2", "dp=2,servers=1", "dp=2")
    ]
    assert settings[0] == settings[1] > settings[2]


def test_figures_are_measured_by_seconds_at_peak_rates() -> None:
    """Amounts by 1; bursts of a device by its computing, those of a network by the exchange; never below a sample."""
    found = inputs_of_request(request_for("resnet18", 8, "dp=2,servers=1"), Grouping())
    busy = np.hypot(found.busy_s, 0.02)
    exchange = np.hypot(10.0 ** found.setting[SETTING_FEATURES.index("exchange_s")], 0.02)
    device, network = [1.0, busy, max(busy, exchange)], [1.0, exchange, np.sqrt(busy * max(busy, exchange))]
    assert found.reference.tolist() == pytest.approx([*device, *device, *network, *network], rel=1e-5)


def test_rows_of_an_adjacency_add_up_to_one() -> None:
    found = group(amounts_of(capture("gpt2")), 12)
    assert found.adjacency.sum(axis=1) == pytest.approx(1.0)
    assert (np.diag(found.adjacency) > 0.0).all()


def test_groups_grow_with_the_logarithm_of_the_size() -> None:
    grouping = Grouping(method="proportional", factor=10.0)
    assert [grouping.number(size) for size in (10, 100, 1000)] == [10, 20, 30]
    assert [b.tolist() for b in batches_by_size([5, 1, 9, 3], 2)] == [[1, 3], [0, 2]]


@pytest.mark.parametrize("wrong", [{"method": "random"}, {"groups": 0}, {"factor": 0.0}])
def test_a_wrong_grouping_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="expected"):
        Grouping(**wrong)  # type: ignore[arg-type]
