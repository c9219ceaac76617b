"""Releases: what a framework does with mixtures of experts depends on its release, its precision and the machine.

The file of a runtime lists such habits in the order of their releases. :func:`settled` turns them into plain settings
of the runtime. Models without experts are not affected.
"""

from __future__ import annotations

from dataclasses import replace

from traincast.cluster import Cluster
from traincast.graph import OperatorGraph, OpKind
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Habit, Runtime, load_runtime


def has_experts(graph: OperatorGraph) -> bool:
    """Return whether a model has experts."""
    return any(op.kind is OpKind.GROUPED_GEMM for op in graph.operators)


def _is_hybrid(graph: OperatorGraph) -> bool:
    return any(op.kind is OpKind.SCAN for op in graph.operators)


def settled(runtime: Runtime, *, graph: OperatorGraph, cluster: Cluster, precision: Precision) -> Runtime:
    """Return ``runtime`` with the habits of its release that apply to this model, machine and precision.

    A runtime without a release gets the newest one that its habits name. The result has no habits left.
    """
    if not runtime.habits:
        return runtime
    if not has_experts(graph):
        return replace(runtime, habits=())
    found = replace(runtime, habits=(), release=runtime.release or newest(runtime))
    for habit in runtime.habits:
        if (habit.hybrids or not _is_hybrid(graph)) and _applies(habit, runtime.release, cluster, precision):
            found = found.patched(**{table: dict(values) for table, values in habit.changes})
    return found


def newest(runtime: Runtime) -> str:
    """Return the newest release that a habit of ``runtime`` names; "" if there is none."""
    return max((habit.since for habit in runtime.habits), key=_number, default="")


def assumed_release(given: str | Runtime, used: Runtime) -> tuple[str, ...]:
    """Return a sentence if ``used``, settled from ``given``, has the habits of a release that nobody stated.

    ``given`` is a runtime or its name.
    """
    given = load_runtime(given) if isinstance(given, str) else given
    if not given.habits or given.release or not used.release:
        return ()
    return (
        f"the release of {used.name} is not stated: its habits with experts are those of {used.release}; for another, "
        f"give --runtime {given.name}:release=NUMBER",
    )


def _applies(habit: Habit, release: str, cluster: Cluster, precision: Precision) -> bool:
    known = not release or _number(habit.since) <= _number(release)
    fits = (not habit.products or precision.linear.value in habit.products) and (
        not habit.architectures or cluster.device.architecture in habit.architectures
    )
    return known and fits and cluster.devices_per_node * cluster.domain_nodes >= habit.joined


def _number(release: str) -> tuple[int, ...]:
    """The parts of a release such as ``26.04.01``, for comparison."""
    return tuple(int(part) for part in release.split(".") if part)
