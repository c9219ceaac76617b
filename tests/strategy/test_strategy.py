"""Strategies as users write them: what is read, what is refused, and how it is said."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import RequestError, Strategy, StrategyError, UnknownNameError
from traincast.strategy import SCHEDULES, parse_strategy, with_micro_batch
from traincast.strategy.strategy import says_micro_batch


def test_a_strategy_is_read_from_its_text() -> None:
    read = parse_strategy("dp=8, tp=4,pp=2,cp=2,vp=3,sp,zero=1,microbatches=6,recompute=full", global_batch=96)
    assert read == Strategy(
        dp=8,
        tp=4,
        pp=2,
        cp=2,
        virtual_stages=3,
        sequence_parallel=True,
        zero=1,
        num_microbatches=6,
        recompute="full",
    )
    assert read.num_ranks == 8 * 4 * 2 * 2
    assert read.micro_batch(96) == 2


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    dp=st.integers(1, 64),
    tp=st.integers(1, 16),
    pp=st.integers(1, 16),
    cp=st.integers(1, 8),
    virtual=st.integers(1, 4),
    microbatches=st.integers(1, 64),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    zero=st.sampled_from([0, 1]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_a_strategy_reads_back_what_it_prints(
    *,
    dp: int,
    tp: int,
    pp: int,
    cp: int,
    virtual: int,
    microbatches: int,
    schedule: str,
    zero: int,
    sequence_parallel: bool,
    recompute: str,
) -> None:
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        virtual_stages=virtual if pp > 1 else 1,
        num_microbatches=microbatches,
        schedule=schedule if pp > 1 else "1f1b",
        zero=zero,  # type: ignore[arg-type]
        sequence_parallel=sequence_parallel and tp > 1,
        recompute=recompute,
    )
    assert parse_strategy(str(strategy), global_batch=1) == strategy


@settings(deadline=None, derandomize=True, max_examples=60)
@given(dp=st.integers(1, 32), microbatches=st.integers(1, 32), micro_batch=st.integers(1, 8))
def test_micro_batch_and_number_of_microbatches_say_one_thing(dp: int, microbatches: int, micro_batch: int) -> None:
    global_batch = dp * microbatches * micro_batch
    strategy = parse_strategy(f"dp={dp},micro_batch={micro_batch}", global_batch=global_batch)
    assert strategy == Strategy(dp=dp, num_microbatches=microbatches)
    assert strategy.micro_batch(global_batch) == micro_batch
    assert with_micro_batch(Strategy(dp=dp), micro_batch, global_batch) == strategy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp=0", "dp=0: expected a whole number from 1 to 10000000"),
        ("dp=-2", "dp=-2: expected a whole number from 1 to 10000000"),
        ("dp=10000001", "dp=10000001: expected a whole number"),
        ("dp=two", "dp='two': expected a whole number, as in dp=8"),
        ("dp=2.5", "dp='2.5': expected a whole number"),
        ("dp", "dp='': expected a whole number"),
        ("dp=2,dp=4", "sets dp twice"),
        ("dp=2,mbs=2,microbatches=2", "give only one of them"),
        ("zero=4", "zero=4: expected 0, 1, 2 or 3"),
        ("zero=2,shard=3,dp=4", "shard=3 with zero=2"),
        ("sp", "sequence_parallel with tp=1"),
        ("sp=maybe,tp=2", "sp='maybe': expected true or false"),
        ("vp=2", "virtual_stages=2 with pp=1"),
        ("micro_batch=3", "global batch 16 is not divisible by dp·micro_batch = 1·3 = 3"),
        ("pd=2", "unknown strategy setting 'pd'"),
        ("recompute=some", "unknown recompute 'some'"),
        ("shard_rules=2", "unknown strategy setting 'shard_rules'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as caught:
        parse_strategy(text, global_batch=16)
    assert "\n" not in str(caught.value)


def test_shares_divide_the_batch_and_the_microbatches() -> None:
    shared = parse_strategy("dp=3,shares=3:2:1,micro_batch=6", global_batch=24)
    assert str(shared) == "dp=3,num_microbatches=2,shares=3:2:1"
    assert (shared.samples(24), shared.micro_batch(24)) == ((12, 8, 4), 6)
    assert parse_strategy("dp=3,shares=12:8:4", global_batch=24).samples(24) == (12, 8, 4)
    assert parse_strategy("dp=3,num_microbatches=2", global_batch=24).samples(24) == (8, 8, 8)
    with pytest.raises(StrategyError, match=r"global batch 20 cannot be divided as shares=3:2:1 .*: 18 and 24"):
        parse_strategy("dp=3,shares=3:2:1", global_batch=20).samples(20)
    with pytest.raises(StrategyError, match="micro_batch=5 does not divide the 12 samples"):
        parse_strategy("dp=3,shares=3:2:1,micro_batch=5", global_batch=24)
    with pytest.raises(StrategyError, match="num_microbatches=6"):
        parse_strategy("dp=3,shares=3:2:1,micro_batch=2", global_batch=24)


def test_servers_are_placed_on_a_list_of_nodes() -> None:
    placed = parse_strategy("dp=4,servers=2,placement=0/3,async", global_batch=4)
    assert (placed.placement, str(placed)) == ((0, 3), "dp=4,servers=2,placement=0/3,asynchronous")


def test_an_empty_text_is_one_device() -> None:
    assert parse_strategy("", global_batch=1) == Strategy()
    assert str(Strategy()) == "dp=1"


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do() -> None:
    with pytest.raises(StrategyError) as caught:
        Strategy(dp=4, num_microbatches=3).micro_batch(100)
    assert str(caught.value) == (
        "global batch 100 is not divisible by dp·num_microbatches = 4·3 = 12; "
        "the nearest batches that are divisible: 96 and 108"
    )


@pytest.mark.parametrize("rule", [("layers.*", "diagonal"), ("", "columns")])
def test_a_shard_rule_is_column_row_or_replicate(rule: tuple[str, str]) -> None:
    with pytest.raises(StrategyError, match="expected column, row or replicate"):
        Strategy(shard_rules=(rule,))


@pytest.mark.parametrize("value", [True, 1.0, "2"])
def test_degrees_are_whole_numbers_and_nothing_that_looks_like_them(value: object) -> None:
    with pytest.raises(StrategyError, match="expected a whole number"):
        Strategy(dp=value)  # type: ignore[arg-type]


def test_which_texts_fix_the_microbatches() -> None:
    assert all(map(says_micro_batch, ("micro_batch=2", "dp=2, mbs=1", "num_microbatches=4", "microbatches=4")))
    assert not any(map(says_micro_batch, ("", "dp=2", "dp=2,tp=4,sp")))


def test_an_unknown_schedule_is_refused_with_the_choices() -> None:
    from traincast.strategy.schedules import load_schedule

    with pytest.raises(UnknownNameError, match="1f1b"):
        load_schedule("1f2b")
