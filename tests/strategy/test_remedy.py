from __future__ import annotations

from functools import partial

import pytest

from traincast import Strategy, StrategyError
from traincast.strategy.memory.fits import HOST_SHARE, MemoryNeed
from traincast.strategy.memory.remedy import changes, find_remedy

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


def needs(strategy: Strategy, *, capacity: float = 65, host_capacity: float = 0.0) -> MemoryNeed:
    """100 bytes, a half of them sharded by ZeRO, and all cut by tensor groups; pipelines are refused.

    Updates on the host take half of it from the device and 40 bytes of the host.
    """
    if strategy.pp > 1:
        raise StrategyError("no pipelines here")
    nbytes = (50 + 50 / (strategy.dp if strategy.zero else 1)) / strategy.tp
    host = "optimizer" in strategy.offload
    nbytes /= 2 if host else 1
    return MemoryNeed(
        forecast=nbytes,
        low=nbytes,
        high=nbytes,
        sure=nbytes,
        probability=float(nbytes <= capacity),
        capacity=capacity,
        host=40.0 if host else 0.0,
        host_capacity=host_capacity,
    )


def test_without_times_the_first_that_fits_is_taken() -> None:
    found = find_remedy(Strategy(dp=4), needs(Strategy(dp=4)), global_batch=GLOBAL_BATCH, need=needs)
    assert found.change is not None and found.changed is not None
    assert (found.change.description, found.changed.forecast) == ("zero=1", 62.5)
    assert str(found) == "needs 100 B per device, 35 B more than the 65 B available; fits with zero=1 (62 B)"


def test_with_times_the_fastest_that_fits_is_taken() -> None:
    def seconds(strategy: Strategy) -> float:
        return 1.0 if strategy.tp == 2 else 2.0

    found = find_remedy(Strategy(dp=4), needs(Strategy(dp=4)), global_batch=GLOBAL_BATCH, need=needs, seconds=seconds)
    assert found.change is not None
    assert (found.change.description, found.step_s) == ("tp=2", 1.0)


def test_only_changes_that_can_be_the_fastest_are_timed() -> None:
    """The same change is found with and without bounds; of equal times the first is taken."""
    takes = {"zero=1": 3.0, "zero=2": 2.0, "zero=3": 9.0}
    timed: list[str] = []

    def seconds(strategy: Strategy) -> float:
        timed.append(f"zero={strategy.zero}")
        return takes.get(timed[-1], 2.0)

    def least(strategy: Strategy) -> float:
        return {"zero=1": 2.5, "zero=2": 1.9, "zero=3": 8.0}.get(f"zero={strategy.zero}", 1.5)

    plain = Strategy(dp=4)
    for bounds, asked in (
        (lambda strategy: 0.0, {"zero=0", "zero=1", "zero=2", "zero=3"}),
        (least, {"zero=0", "zero=2"}),
    ):
        timed.clear()
        found = find_remedy(plain, needs(plain), global_batch=GLOBAL_BATCH, need=needs, seconds=seconds, least=bounds)
        assert found.change is not None
        assert (found.change.description, found.step_s, set(timed)) == ("zero=2", 2.0, asked)


@pytest.mark.parametrize("capacity", [200, 1])
def test_nothing_is_proposed_where_nothing_is_missing_or_nothing_helps(capacity: float) -> None:
    strategy, need = Strategy(dp=4), partial(needs, capacity=capacity)
    found = find_remedy(strategy, need(strategy), global_batch=GLOBAL_BATCH, need=need)
    assert found.change is None
    assert "no change of one or two" in str(found)
    assert found.need.fits == (capacity == 200)


def test_a_host_that_is_too_small_gets_nothing_offloaded() -> None:
    def need(strategy: Strategy) -> MemoryNeed:
        return needs(strategy, capacity=100, host_capacity=40.0)

    assert HOST_SHARE < 1.0  # a host's memory is not all there for what is offloaded
    strategy = Strategy(dp=4, offload=("optimizer",))
    found = find_remedy(strategy, need(strategy), global_batch=GLOBAL_BATCH, need=need)
    assert found.change is not None
    assert found.change.description == "nothing offloaded"
    assert str(found).startswith("needs 40 B of host memory per node for offloading, 4 B more than the 36 B")


def test_offloading_is_no_remedy_where_the_host_is_too_small() -> None:
    def need(strategy: Strategy) -> MemoryNeed:
        if strategy.zero or strategy.tp > 1:
            raise StrategyError("not here")
        return needs(strategy, host_capacity=30.0)

    found = find_remedy(Strategy(dp=4), need(Strategy(dp=4)), global_batch=GLOBAL_BATCH, need=need)
    assert found.change is None
