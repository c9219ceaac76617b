"""What a user asks of strategies, and how it is refused."""

from __future__ import annotations

import math
from functools import cache

import pytest

from tests.searching.problems import TINY, problem_for, request_for
from traincast import RequestError, StrategyError, TraincastError, UnknownNameError
from traincast.searching.constraints import apply_constraints
from traincast.searching.space import Axes, usual_axes
from traincast.units import GIB, parse_bytes


@cache
def usual() -> Axes:
    return usual_axes(request_for(TINY, 8, 16))


def constrained(text: str) -> tuple[Axes, float]:
    return apply_constraints(text, usual(), 80e9)


def test_constraints_restrict_their_axes_and_no_others() -> None:
    axes, memory = constrained("memory<=70GB, tp<=4,pp>1, pp != 4,schedule=1f1b|zb-v,sp=true,mbs<4,vp=1,zero=1|3,")
    assert (axes.tp, axes.pp, axes.schedule, memory) == ((1, 2, 4), (2,), ("1f1b", "zb-v"), 70e9)
    assert (axes.sequence_parallel, axes.micro_batch, axes.virtual_stages, axes.zero) == ((True,), (1, 2), (1,), (1, 3))
    assert (axes.cp, axes.recompute, axes.offload) == (usual().cp, usual().recompute, usual().offload)
    assert constrained("") == (usual(), 80e9)
    assert constrained(" , ") == (usual(), 80e9)


def test_values_of_names_and_flags_are_read() -> None:
    assert constrained("recompute!=none")[0].recompute == tuple(r for r in usual().recompute if r != "none")
    assert constrained("recompute=full/2|full")[0].recompute == ("full/2", "full")
    assert constrained("cut=even,offload=none")[0].cut == ("even",)
    for text in ("sequence_parallel=no", "sp=0", "sp=False", "sp!=yes"):
        assert constrained(text)[0].sequence_parallel == (False,)


def test_the_lowest_limit_of_memory_holds() -> None:
    assert constrained("memory<=90GB")[1] == 80e9
    assert constrained("memory<60GiB,memory<=50GiB")[1] == 50 * GIB


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("tp", RequestError, "constraint 'tp': expected a limit such as tp<=8"),
        ("tp<=", RequestError, "constraint 'tp<=': expected a whole number"),
        ("8>=tp", RequestError, "expected a limit such as tp<=8"),
        ("tp=two", RequestError, "constraint 'tp=two': expected a whole number"),
        ("tp<=2|4", RequestError, "<= compares one number; use = or != here"),
        ("schedule<1f1b", RequestError, "< compares one number"),
        ("sp=maybe", RequestError, "constraint 'sp=maybe': expected true or false"),
        ("memory>=10GB", RequestError, "memory takes only an upper limit, such as memory<=70GB"),
        ("memory<=lots", RequestError, "constraint memory is 'lots': expected a size above zero, such as 70GB"),
        ("colour=red", UnknownNameError, "unknown constraint 'colour'"),
        ("tpp<=8", UnknownNameError, "unknown constraint 'tpp': did you mean tp"),
        ("tp=3", StrategyError, "no value of tp is left: this model, cluster and batch allow 1, 2, 4"),
        ("schedule=zigzag", UnknownNameError, "unknown schedule 'zigzag'"),
        ("schedule=1f1b|zigzag", UnknownNameError, "unknown schedule 'zigzag'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(text: str, kind: type[TraincastError], said: str) -> None:
    with pytest.raises(kind) as caught:
        constrained(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("70GB", 70e9), ("64 GiB", 64 * GIB), ("8e10", 8e10), ("1.5tb", 1.5e12), ("512MiB", 512 * 1024**2), (" 7b ", 7.0)],
)
def test_amounts_of_memory_are_read(text: str, value: float) -> None:
    assert parse_bytes(text, what="memory") == value


@pytest.mark.parametrize("text", ["", "GB", "70 gigs", "-5GB", "0", "1e999", "nan", "inf", "7 0GB", "٣GB", "70G\nB"])
def test_bad_amounts_are_told_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"^limit is .*: expected a size above zero, such as 70GB"):
        parse_bytes(text, what="limit")


def test_a_limit_of_memory_cuts_what_needs_more() -> None:
    assert problem_for(constraint="memory<=2GB").most_memory == 2e9
    assert math.isinf(problem_for().reach)
