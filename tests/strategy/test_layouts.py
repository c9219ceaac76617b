"""Layouts of images, and what the host prepares for libraries: what runtimes say, and what it does to a step."""

from __future__ import annotations

import pytest

from tests.conftest import request_of
from traincast import Operator, load_runtime, predict
from traincast.ask import Ask
from traincast.errors import RequestError
from traincast.graph import OpKind
from traincast.resolve import resolve
from traincast.strategy import lower
from traincast.work import Launch

LAUNCHES = load_runtime("pytorch").launches


def step(layout: str | None = None, *, precision: str = "amp", batch: int = 256) -> float:
    made = predict("resnet50", cluster="a100-sxm4-80gb", global_batch=batch, precision=precision, layout=layout)  # type: ignore[arg-type]
    return made.report.step_s


def test_channels_first_lengthens_steps_in_16_bits_alone() -> None:
    assert 1.3 < step("channels_first") / step("channels_last") < 1.8
    assert step("channels_first", precision="tf32") == step("channels_last", precision="tf32")


def test_an_ask_states_the_layout_and_pytorch_keeps_channels_first() -> None:
    assert step() == step("channels_first")
    asked = Ask("resnet50", cluster="a100-sxm4-80gb", global_batch=8, layout="channels_last")
    assert resolve(asked).request.runtime.kernels.layout == "channels_last"
    with pytest.raises(RequestError, match="layout 'nchw': expected channels_first or channels_last"):
        step("nchw")
    for name in ("tensorflow", "tensorflow-xla", "mxnet", "paddle"):
        assert load_runtime(name).kernels.layout == "channels_last"


def test_works_of_convolutions_carry_a_layout_that_is_not_the_usual_one() -> None:
    for layout, carried in (("channels_first", {"channels_first"}), ("channels_last", {None})):
        runtime = load_runtime("pytorch").patched(kernels={"layout": layout})
        works = lower(request_of(model="resnet18", runtime=runtime)).plan.works
        found = {w.attributes.get("layout") for w in works if isinstance(w, Operator) and w.kind is OpKind.CONV}
        assert found == carried


def test_the_host_prepares_convolutions_and_batch_norms_and_nothing_else() -> None:
    works = lower(request_of(model="resnet18")).plan.works
    assert {w.prepared for w in works if isinstance(w, Launch)} == {
        0.0,
        LAUNCHES.prepared,
        LAUNCHES.prepared_backward,
    }
    words = lower(request_of()).plan.works  # a language model
    assert {w.prepared for w in words if isinstance(w, Launch)} == {0.0}


def test_a_small_batch_waits_for_its_host_in_every_precision() -> None:
    half, single = (step("channels_last", precision=name, batch=2) for name in ("fp16", "tf32"))
    assert half == pytest.approx(single, rel=0.1)
    report = predict("resnet50", cluster="a100-sxm4-80gb", global_batch=2, precision="fp16").report
    assert report.high_s / report.step_s > 2.0


def test_a_device_waits_for_the_script_between_steps_with_and_without_an_update() -> None:
    for optimizer in (True, False):
        runtime = load_runtime("pytorch").patched(launches={"parameter": 0.0})
        works = lower(request_of(model="resnet18", runtime=runtime, optimizer=optimizer)).plan.works
        assert LAUNCHES.step in {w.blocks for w in works if isinstance(w, Launch)}
