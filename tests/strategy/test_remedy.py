from __future__ import annotations

import pytest

from traincast.errors import StrategyError
from traincast.strategy import Strategy
from traincast.strategy.remedy import changes, find_remedy

GLOBAL_BATCH = 64


def said(strategy: Strategy) -> list[str]:
    return [c.description for c in changes(strategy, global_batch=GLOBAL_BATCH)]


def test_changes_go_from_cheap_to_dear() -> None:
    assert said(Strategy(dp=8, tp=2, num_microbatches=2)) == [
        "zero=1",
        "zero=2",
        "zero=3",
        "sequence_parallel",
        "micro_batch=2",
        "micro_batch=1",
        "recompute=selective",
        "recompute=full",
        "tp=4",
        "pp=2",
        "tp=8",
        "pp=4",
        "pp=8",
        "offload=optimizer",
    ]


def test_what_is_done_already_is_not_proposed() -> None:
    strategy = Strategy(tp=8, num_microbatches=64, sequence_parallel=True, recompute="full", offload=("optimizer",))
    assert said(strategy) == []


def test_changes_keep_the_devices_and_the_samples_of_a_step() -> None:
    strategy = Strategy(dp=8, tp=2, num_microbatches=2)
    for change in changes(strategy, global_batch=GLOBAL_BATCH):
        assert change.strategy.num_ranks == strategy.num_ranks
        changed = change.strategy.micro_batch(GLOBAL_BATCH)
        assert changed == strategy.micro_batch(GLOBAL_BATCH) or change.description.startswith("micro_batch")


def needs(strategy: Strategy) -> float:
    """100 bytes, a half of them sharded by ZeRO, and all cut by tensor groups; pipelines are refused."""
    if strategy.pp > 1:
        raise StrategyError("no pipelines here")
    return (50 + 50 / (strategy.dp if strategy.zero else 1)) / strategy.tp


def test_without_times_the_first_that_fits_is_taken() -> None:
    found = find_remedy(Strategy(dp=4), capacity=65, global_batch=GLOBAL_BATCH, memory=needs)
    assert found.change is not None
    assert (found.change.description, found.memory_bytes, found.shortfall) == ("zero=1", 62.5, 35)
    assert "zero=1" in str(found)


def test_with_times_the_fastest_that_fits_is_taken() -> None:
    def seconds(strategy: Strategy) -> float:
        return 1.0 if strategy.tp == 2 else 2.0

    found = find_remedy(Strategy(dp=4), capacity=65, global_batch=GLOBAL_BATCH, memory=needs, seconds=seconds)
    assert found.change is not None
    assert (found.change.description, found.step_s) == ("tp=2", 1.0)


@pytest.mark.parametrize(("capacity", "shortfall"), [(200, 0), (1, 99)])
def test_nothing_is_proposed_where_nothing_is_missing_or_nothing_helps(capacity: float, shortfall: float) -> None:
    found = find_remedy(Strategy(dp=4), capacity=capacity, global_batch=GLOBAL_BATCH, memory=needs)
    assert found.change is None
    assert found.shortfall == shortfall
    assert "no change of one or two" in str(found) or not shortfall
