"""Emulated compute takes the seconds of a device, and computes nothing."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from torch import nn

from traincast import Operator
from traincast.graph import OpKind, Phase
from traincast.testbed.rank.emulate import DeviceClock, Emulation
from traincast.testbed.rank.recorder import SpanRecorder

SECONDS = 1e-3


class Bench:
    """An emulated device that needs the same time for every operator, and remembers which it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Operator] = []
        self.recorder, self.clock = SpanRecorder(), DeviceClock()
        self.mode = Emulation(self._seconds, self.clock, self.recorder)

    def _seconds(self, operator: Operator) -> float:
        self.asked.append(operator)
        return SECONDS

    def train(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.clock.resume()
        with self.mode:
            self.mode.phase = Phase.FORWARD
            out = module(x)
            self.mode.phase = Phase.BACKWARD
            out.sum().backward()
        return out


def test_operators_take_the_time_of_the_device_one_after_the_other() -> None:
    bench = Bench()
    bench.train(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.zeros(3, 8))
    rows = bench.recorder.rows
    names = [row.name for row in rows]
    assert names[:2] == ["addmm", "relu"]
    assert names.count("mm") == 1  # the gradient of the weights; the input needs none
    assert all(row.end_s - row.start_s == pytest.approx(SECONDS) for row in rows)
    assert all(b.start_s == pytest.approx(a.end_s) for a, b in pairwise(rows))


def test_the_process_waits_for_the_device() -> None:
    bench = Bench()
    start = time.monotonic()
    bench.train(nn.Linear(8, 4), torch.zeros(3, 8))
    bench.clock.finish()
    assert time.monotonic() - start >= SECONDS * len(bench.recorder.rows)


def test_outputs_have_the_right_shapes_and_nothing_is_computed() -> None:
    bench = Bench()
    module = nn.Linear(8, 4)
    out = bench.train(module, torch.ones(3, 8))
    assert out.shape == (3, 4)
    assert torch.count_nonzero(out) == 0
    assert module.weight.grad is not None
    assert module.weight.grad.shape == (4, 8)


def test_views_really_happen_and_cost_nothing() -> None:
    bench = Bench()
    x = torch.arange(6.0)
    with bench.mode:
        y = x.view(2, 3).t()
    assert y.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert bench.recorder.rows == []


def test_an_operation_in_place_returns_its_own_argument() -> None:
    bench = Bench()
    x = torch.ones(4)
    with bench.mode:
        y = x.add_(1.0)
    assert y is x
    assert x.tolist() == [1.0] * 4
    assert [row.name for row in bench.recorder.rows] == ["add_"]


def test_summing_gradients_is_no_work_of_the_device() -> None:
    bench = Bench()
    module = nn.Linear(8, 4, bias=False)
    for _ in range(2):  # the second pass adds to the gradients of the first
        bench.train(module, torch.ones(3, 8))
    assert {operator.name for operator in bench.asked} == {row.name for row in bench.recorder.rows}
    assert "add_" not in {row.name for row in bench.recorder.rows}


def test_operators_are_described_as_a_capture_describes_them() -> None:
    bench = Bench()
    bench.train(nn.Linear(8, 4), torch.zeros(3, 8))
    product = next(operator for operator in bench.asked if operator.name == "addmm")
    assert [t.shape for t in product.inputs] == [(3, 8), (8, 4), (4,)]
    assert product.phase is Phase.FORWARD
    assert next(o for o in bench.asked if o.name == "mm").phase is Phase.BACKWARD


def test_a_device_that_waited_starts_from_the_present() -> None:
    clock = DeviceClock()
    clock.free = time.monotonic() - 5.0
    behind = clock.run(SECONDS)
    assert behind[1] < time.monotonic() - 4.0  # it catches up with what it was given
    clock.resume()
    assert clock.run(SECONDS)[0] >= time.monotonic() - 0.5


def test_a_host_that_falls_behind_its_device_makes_messages_late() -> None:
    clock = DeviceClock()
    clock.run(0.001)
    time.sleep(0.02)
    clock.run(0.001)  # the host comes back long after the device could have begun this
    clock.finish()
    clock.resume()
    assert clock.lost_s() > 0.01
    clock.run(0.01)
    clock.finish()
    time.sleep(0.02)  # waiting for a message is no fault of the host
    clock.resume()
    assert clock.lost_s() < 0.01


def test_a_recurrent_layer_has_its_samples_in_the_second_dim() -> None:
    bench = Bench()
    with bench.mode:
        nn.LSTM(8, 4)(torch.zeros(5, 3, 8))
    layer = next(operator for operator in bench.asked if operator.kind is OpKind.RNN)
    assert layer.inputs[0].shape == (5, 3, 8)
    assert layer.inputs[0].batch_dim == 1
