"""The nearest measured runs, and how far away they are in words."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.evidence.samples import GPT, run_of
from traincast.evidence import Runs, Traits, evidence_of
from traincast.evidence.neighbours import times


def words(asked: Traits, *runs: Any) -> tuple[str, ...]:
    return evidence_of(asked, runs=Runs.of(runs or [run_of()])).words[1:]


def test_the_nearest_come_first_and_at_most_two_of_one_source() -> None:
    runs = [run_of(source="a", devices=64 * 2**n, measured_s=1.0 + n) for n in range(4)]
    runs += [run_of(source="b", devices=512), run_of(source="c", kind="images")]
    found = evidence_of(GPT, runs=Runs.of(runs)).neighbours
    assert [(one.source, one.measured_s) for one in found] == [("a", 1.0), ("a", 2.0), ("b", 2.0), ("c", 2.0)]
    assert [one.distance for one in found] == sorted(one.distance for one in found)


def test_no_more_than_asked_for_are_returned() -> None:
    runs = Runs.of([run_of(source=str(number)) for number in range(9)])
    assert len(evidence_of(GPT, runs=runs).neighbours) == 5
    assert len(evidence_of(GPT, runs=runs, count=2).neighbours) == 2


def test_a_neighbour_says_what_differs_the_largest_first() -> None:
    run = run_of(kind="experts", devices=128, zero=1, runtime="megatron", precision="fp8", products="fp8")
    (found,) = evidence_of(GPT, runs=Runs.of([run])).neighbours
    assert found.differs[0] == "a mixture of experts"
    assert set(found.differs[1:]) == {
        "twice the devices", "no zero=3", "megatron instead of fsdp", "fp8 products instead of bf16",
    }  # fmt: skip
    assert (found.source, found.model, found.device, found.strategy) == ("lab", "gpt", GPT.device, GPT.strategy)


def test_the_error_of_a_neighbour_is_that_of_its_forecast() -> None:
    (found,) = evidence_of(GPT, runs=Runs.of([run_of(measured_s=2.0, predicted_s=1.5)])).neighbours
    assert found.error == -0.25


def test_the_first_sentence_tells_how_near_and_how_wrong() -> None:
    runs = [run_of(predicted_s=1.8), run_of(predicted_s=2.2, devices=128)]
    assert evidence_of(GPT, runs=Runs.of(runs)).words == (
        "the nearest measured run is near, with the same settings; forecasts of the 2 nearest are off by "
        "-10 % to +10 %",
    )
    far = evidence_of(GPT, runs=Runs.of([run_of(tp=16, tensor_nodes=2)])).words[0]
    assert far == (
        "the nearest measured run is far away (tp across nodes, tp); forecasts of the 1 nearest are off by +0 %"
    )


def test_more_nodes_than_anyone_measured_are_said() -> None:
    assert words(replace(GPT, nodes=16, devices=128)) == ("twice the nodes of any measured run of a language model",)
    assert words(replace(GPT, nodes=4, devices=32)) == ()


def test_longer_samples_and_larger_models_are_said() -> None:
    assert words(replace(GPT, tokens=40960, parameters=28e9)) == (
        "3.5 times the parameters of any measured run of a language model",
        "10 times the tokens per sample of any measured run of a language model",
    )


def test_a_device_that_nobody_measured_is_said() -> None:
    assert words(replace(GPT, device="h200-sxm")) == ("no measured run on h200-sxm; 1 on other hopper devices",)
    assert words(replace(GPT, device="b200-sxm", architecture="blackwell")) == (
        "no measured run on b200-sxm, nor on any blackwell",
    )


def test_a_power_limit_that_nobody_measured_is_said() -> None:
    assert words(replace(GPT, power_w=500.0)) == ("h100-sxm5-80gb was measured only at 700 W, not at 500 W",)


def test_a_format_and_a_framework_that_nobody_measured_are_said() -> None:
    assert words(replace(GPT, products="fp8", runtime="megatron")) == (
        "no measured run with fp8 products on h100-sxm5-80gb",
        "no measured run with megatron",
    )


def test_techniques_without_support_are_said() -> None:
    assert words(replace(GPT, offload="activations")) == ("offload=activations: no measured run has used it",)


def test_a_kind_that_nobody_measured_is_said() -> None:
    assert words(replace(GPT, kind="experts")) == ("no measured run of a mixture of experts",)


def test_without_any_run_it_says_so() -> None:
    assert evidence_of(GPT, runs=Runs.of([])).neighbours == ()


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(2.0, "twice"), (3.52, "3.5 times"), (16, "16 times"), (0.5, "half"), (0.25, "a quarter of"), (0.7, "0.7 times")],
)
def test_ratios_are_written_as_people_say_them(ratio: float, text: str) -> None:
    assert times(ratio) == text
