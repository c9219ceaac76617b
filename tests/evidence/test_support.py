"""Which techniques of a strategy were used by measured runs like this one."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from tests.evidence.samples import GPT, run_of
from traincast.evidence import Runs, Support, support
from traincast.evidence.support import ENOUGH, NEAR, TECHNIQUES


def the_only(found: tuple[Support, ...]) -> Support:
    (one,) = found
    return one


def test_a_technique_is_supported_by_a_near_run_that_used_it() -> None:
    runs = Runs.of([run_of(source="a"), run_of(source="b"), run_of(source="b", dp=32, sharded=32)])
    assert support(GPT, runs=runs) == (Support(technique="zero=3", runs=3, sources=2),)


@pytest.mark.parametrize("name", ["parameters", "devices"])
@pytest.mark.parametrize("up", [True, False])
def test_a_run_beyond_a_factor_of_eight_is_not_near(name: str, up: bool) -> None:
    value = getattr(GPT, name) * (NEAR if up else 1 / NEAR)
    assert the_only(support(GPT, runs=Runs.of([run_of(**{name: value})]))).supported
    found = the_only(support(GPT, runs=Runs.of([run_of(**{name: value * (1.01 if up else 0.99)})])))
    assert not found.supported
    assert found.words == "zero=3: no measured run near this one, within a factor of 8 in parameters and devices"


def test_a_technique_taken_more_than_twice_as_far_as_measured_is_not_supported() -> None:
    runs = Runs.of([run_of(sharded=64 // ENOUGH), run_of(sharded=8)])
    assert the_only(support(GPT, runs=runs)).runs == 1
    found = the_only(support(replace(GPT, sharded=65), runs=runs))
    assert (found.supported, found.words) == (
        False,
        "zero=3: 65 replicas; measured runs near this one reach 32 replicas",
    )


def test_context_parallelism_of_short_samples_is_not_supported_by_that_of_long_ones() -> None:
    runs = Runs.of([run_of(cp=2, tokens=8192)])
    asked = replace(GPT, zero=0, cp=2, tokens=2048)
    assert the_only(support(asked, runs=runs)).words == (
        "cp: 1,024 tokens per rank; measured runs near this one reach 4,096 tokens per rank"
    )
    assert the_only(support(replace(asked, tokens=4096), runs=runs)).supported


def test_what_nobody_measured_is_said_to_be_unmeasured() -> None:
    asked = replace(GPT, offload="optimizer+activations")
    found = {one.technique: one for one in support(asked, runs=Runs.of([run_of(), run_of(offload="optimizer")]))}
    assert list(found) == ["zero=3", "offload=optimizer", "offload=activations"]
    assert found["offload=optimizer"].runs == 1
    assert found["offload=activations"].words == "offload=activations: no measured run has used it"


def test_machines_of_another_vendor_do_not_support_this_one() -> None:
    assert not the_only(support(GPT, runs=Runs.of([run_of(vendor="google")]))).supported


def test_networks_for_images_do_not_support_language_models() -> None:
    assert not the_only(support(GPT, runs=Runs.of([run_of(kind="images")]))).supported


def test_a_strategy_without_techniques_needs_no_support() -> None:
    assert support(replace(GPT, zero=0, sharded=1), runs=Runs.of([run_of()])) == ()


def test_the_more_runs_the_more_support() -> None:
    runs = [run_of(tp=tp, pp=pp, zero=zero) for tp in (1, 8, 16) for pp in (1, 8) for zero in (0, 1, 3)]
    asked = replace(GPT, tp=8, pp=4, zero=1)
    counts = [{one.technique: one.runs for one in support(asked, runs=Runs.of(runs[:n]))} for n in (1, 9, 18)]
    for fewer, more in itertools.pairwise(counts):
        assert all(more[name] >= number for name, number in fewer.items())
    assert set(counts[-1]) <= set(TECHNIQUES)
