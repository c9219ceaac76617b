"""Groups of the study: few runs on one maker's compiler are calibrated together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from benchmarks.study import together

from traincast import load_device


def groups_of(device: str, **counts: int) -> tuple[dict[tuple[str, str, str], list[int]], list[Any]]:
    """Groups of this many runs by runtime, all on ``device``, and the runs."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for runtime, count in counts.items():
        start = sum(len(members) for members in groups.values())
        groups["source", device, runtime] = list(range(start, start + count))
    request = SimpleNamespace(cluster=SimpleNamespace(device=load_device(device)))
    run = SimpleNamespace(measured=SimpleNamespace(request=request))
    return groups, [run] * sum(counts.values())


def test_few_runs_of_two_runtimes_on_one_compiler_are_one_group() -> None:
    groups, runs = groups_of("gaudi3", plain=5, deepspeed=9)
    assert together(groups, cast("Any", runs)) == {("source", "gaudi3", "deepspeed"): list(range(14))}


def test_many_runs_and_runs_on_gpus_stay_apart() -> None:
    for device, count in (("gaudi3", 30), ("a100-sxm4-80gb", 5)):
        groups, runs = groups_of(device, plain=count, deepspeed=9)
        assert together(groups, cast("Any", runs)) == groups


def test_other_sources_are_other_groups() -> None:
    groups, runs = groups_of("gaudi3", plain=5)
    groups["other", "gaudi3", "plain"] = [0, 1]
    assert together(groups, cast("Any", runs)) == groups
