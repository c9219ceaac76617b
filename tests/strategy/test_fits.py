from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import request_of
from traincast import Strategy, load_runtime
from traincast.forecast import forecast
from traincast.strategy import Memory
from traincast.strategy.memory.fits import (
    HOST_SHARE,
    MARGIN,
    MemoryFit,
    MemoryNeed,
    bytes_with,
    factor,
    fullest_node,
    need_of,
    probability_of,
    shown_share,
)

GIB = 2.0**30
NANOTRON = load_runtime("nanotron")
amounts = st.floats(0.01, 1000.0)


def holding(states: float, beyond: float) -> Memory:
    return Memory(
        weights=states / 2, gradients=states / 4, optimizer=states / 4, activations=beyond / 2, other=beyond / 2
    )


def test_a_runtimes_figures_hold_nine_tenths_of_its_runs() -> None:
    assert factor(NANOTRON, 0.5) == 1.0
    assert factor(NANOTRON, 0.95) == pytest.approx(NANOTRON.memory.high)
    assert factor(NANOTRON, 0.05) == pytest.approx(NANOTRON.memory.low)


def test_a_framework_that_nobody_measured_is_less_sure() -> None:
    assert load_runtime("pytorch").memory.high > NANOTRON.memory.high
    assert load_runtime("pytorch").memory.low < NANOTRON.memory.low


@settings(deadline=None)
@given(states=amounts, beyond=amounts, probability=st.floats(0.01, 0.99))
def test_the_bytes_that_suffice_with_a_probability_suffice_with_that_probability(
    states: float, beyond: float, probability: float
) -> None:
    memory = holding(states, beyond)
    enough = bytes_with(memory, NANOTRON, probability)
    assert enough >= states
    assert probability_of(memory, enough, NANOTRON) == pytest.approx(probability, abs=1e-6)


@settings(deadline=None)
@given(states=amounts, beyond=amounts, capacity=amounts, more=st.floats(1.0, 2.0))
def test_more_room_never_makes_it_less_likely(states: float, beyond: float, capacity: float, more: float) -> None:
    memory = holding(states, beyond)
    assert probability_of(memory, capacity, NANOTRON) <= probability_of(memory, capacity * more, NANOTRON)


def test_what_fills_a_device_to_the_last_byte_does_not_fit() -> None:
    request = request_of("dp=1")
    device = replace(request.cluster.device, memory_bytes=79.2 * GIB)
    cluster = replace(request.cluster, device=device)
    need = need_of([holding(40 * GIB, 39.1 * GIB)], strategy=Strategy(), runtime=NANOTRON, cluster=cluster)
    assert not need.fits
    assert need.probability == pytest.approx(0.5, abs=0.02)
    assert need.fit is MemoryFit.MAY_NOT_FIT
    assert "the forecast of 79.1 GiB per device fits into the 79.2 GiB available" in need.shortage()
    assert "85 % is required" in need.shortage()


def test_states_alone_leave_no_doubt() -> None:
    assert probability_of(holding(10.0, 1e-9), 10.1, NANOTRON) == pytest.approx(1.0)
    assert probability_of(holding(10.0, 1.0), 10.0, NANOTRON) == 0.0


def need(**changes: float) -> MemoryNeed:
    base = MemoryNeed(forecast=50.0, low=45.0, high=60.0, sure=55.0, probability=0.95, capacity=60.0)
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (need(), "fits with 95 %", ""),
        (need(capacity=54.0, probability=0.61), MemoryFit.MAY_NOT_FIT.value, "available with 61 %; 85 % is required"),
        (
            need(capacity=20.0, probability=0.0),
            MemoryFit.DOES_NOT_FIT.value,
            "needs 50 B per device, 30 B more than the 20 B available",
        ),
        (need(host=95.0, host_capacity=100.0), MemoryFit.DOES_NOT_FIT.value, "needs 95 B of host memory per node"),
        (need(host=90.0, host_capacity=100.0), "fits with 95 %", ""),
        (need(host=95.0), "fits with 95 %", ""),
    ],
)
def test_a_verdict_says_which_memory_is_short(found: MemoryNeed, verdict: str, said: str) -> None:
    assert found.verdict == verdict
    assert found.fits == (found.fit is MemoryFit.FITS) == (not said)
    assert said in found.shortage()
    assert (found.load <= 1.0) == found.fits


def test_no_probability_is_shown_as_certain() -> None:
    assert [shown_share(p) for p in (1.0, 0.9951, 0.97, 0.005, 0.0)] == [
        "over 99 %", "over 99 %", "97 %", "under 1 %", "under 1 %",
    ]  # fmt: skip


def test_a_probability_below_the_required_one_is_never_shown_as_enough() -> None:
    assert [shown_share(p) for p in (0.849, 0.85, 0.8599, 0.29)] == ["84 %", "85 %", "85 %", "29 %"]
    assert "available with 84 %; 85 % is required" in need(capacity=54.0, probability=0.8499).shortage()


@settings(deadline=None)
@given(
    hosts=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6),
    ranks=st.integers(1, 12),
    devices=st.integers(1, 12),
)
def test_the_fullest_node_is_that_of_ranks_packed_node_by_node(hosts: list[float], ranks: int, devices: int) -> None:
    each = np.repeat(hosts, ranks)
    nodes = [each[n : n + devices].sum() for n in range(0, len(each), devices)]
    found = fullest_node(np.array(hosts), ranks_per_stage=ranks, devices_per_node=devices)
    assert float(found) == pytest.approx(max(nodes))


def test_a_report_says_how_likely_it_fits_and_between_what_memory_lies() -> None:
    made = forecast(request_of("dp=8,zero=1", runtime="nanotron"))
    report, (memory,) = made.report, made.lowered.memory
    assert report.fits and report.fits_margin == MARGIN <= report.fits_probability
    assert report.memory_low_bytes == pytest.approx(memory.states + 0.75 * (memory.total - memory.states))
    assert report.memory_high_bytes == pytest.approx(memory.states + 1.37 * (memory.total - memory.states))
    data = report.to_dict()
    names = {
        "memory_low_bytes",
        "memory_high_bytes",
        "fits_probability",
        "host_memory_bytes",
        "host_memory_capacity_bytes",
    }
    assert names <= set(data)
    assert data["host_memory_bytes"] == 0.0


def test_fits_asks_for_the_margin() -> None:
    request = request_of("dp=8,zero=1", runtime="nanotron")
    (memory,) = forecast(request).lowered.memory
    needed = bytes_with(memory, request.runtime, MARGIN)
    for share, fits in ((1.001, True), (0.999, False)):
        device = replace(request.cluster.device, memory_bytes=needed * share)
        report = forecast(replace(request, cluster=replace(request.cluster, device=device))).report
        assert report.fits is fits
        assert math.isclose(report.fits_probability, MARGIN, abs_tol=0.01)
    assert HOST_SHARE < 1.0
