"""What an ask means here: the only way from words to a :class:`traincast.strategy.Request`.

The command line, the Python functions, job rows, measured rows and processes that profile all fill an
:class:`traincast.ask.Ask`; :func:`resolve` finds the model, the cluster, the runtime and the strategy that it names,
takes usual ones where it names none, and says what it assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from traincast.ask import MAX_BATCH, MAX_WATTS, Ask, Conditions, JobSettings, Training
from traincast.cluster import Cluster, assumed_nodes, load_cluster
from traincast.errors import RequestError, expect
from traincast.estimate import CostModel, learned_cost_model
from traincast.graph import OperatorGraph
from traincast.graph.load import load_model
from traincast.strategy import (
    Request,
    Runtime,
    Strategy,
    choose_micro_batch,
    load_precision,
    load_runtime,
    parse_strategy,
)
from traincast.strategy.choose import Choice, assumed_runtime, choose, usual_precision, usual_runtime
from traincast.strategy.prepare import for_workers
from traincast.strategy.program.losses import with_loss
from traincast.strategy.releases import settled
from traincast.strategy.runtime import LAYOUTS
from traincast.strategy.schedules import check_schedule_of_data
from traincast.strategy.strategy import says_micro_batch

Chooser: TypeAlias = Callable[[Request], Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request, one sentence for each thing that the ask left open, and how the strategy was chosen, if it was."""

    request: Request
    assumed: tuple[str, ...] = ()
    choice: Choice | None = None


def resolve(ask: Training, *, chooser: Chooser | None = choose, allow_code: bool = True) -> Resolved:
    """Return the request that ``ask`` describes, and what was assumed in it.

    ``chooser`` chooses the strategy if the ask names none; without a chooser, or if the ask has no place for a
    strategy, the request's strategy is empty. A strategy in words that states no micro batch gets the largest that
    fits. ``allow_code`` says whether the ask may name a model or a schedule that is Python code.
    """
    _check(ask)
    named = _runtime(ask)
    tuned = _tuning(ask, named)
    cluster = load_cluster(ask.cluster, hosts=True) if isinstance(ask.cluster, str) else ask.cluster
    if ask.power_limit is not None:
        cluster = cluster.with_power_limit(ask.power_limit)
    graph = tuned(_graph(ask, allow_code=allow_code))
    if isinstance(ask.optimizer, str):
        graph = graph.with_optimizer(ask.optimizer)
    precision = load_precision(usual_precision(graph, cluster) if ask.precision is None else ask.precision)
    runtime = _with_options(named or load_runtime(usual_runtime(graph, cluster)), ask)
    request = Request(
        graph=graph,
        cluster=cluster,
        strategy=Strategy(),
        runtime=settled(runtime, graph=graph, cluster=cluster, precision=precision),
        precision=precision,
        global_batch=ask.global_batch,
        optimizer=bool(ask.optimizer),
    )
    choice = None
    if isinstance(ask, Ask):
        if ask.strategy is not None:
            request = replace(request, strategy=_strategy(request, ask, allow_code=allow_code))
        elif chooser is not None:
            choice = chooser(request)
            request = replace(request, strategy=replace(choice.strategy, shard_rules=ask.shard_rules))
    assumed = (*assumed_runtime(ask.runtime, request), *assumed_nodes(cluster))
    return Resolved(request=request, assumed=assumed, choice=choice)


def _runtime(ask: Training) -> Runtime | None:
    """The runtime that an ask names, or ``None``."""
    if ask.runtime is None or isinstance(ask.runtime, Runtime):
        return ask.runtime
    return load_runtime(ask.runtime)


def _with_options(runtime: Runtime, ask: Training) -> Runtime:
    """``runtime`` with the layout, the loss and the updates that an ask names."""
    if ask.layout is not None:
        runtime = runtime.patched(kernels={"layout": ask.layout})
    if ask.loss is not None:
        runtime = with_loss(runtime, ask.loss)
    return runtime.patched(memory={"updates_in_backward": True}) if ask.optimizer_in_backward else runtime


def stated_strategy(ask: Ask) -> Strategy:
    """Return the strategy that ``ask`` states, before its model and cluster are known; by default, that of one rank.

    A number of microbatches that the words leave out is 1 here; :func:`resolve` chooses it.
    """
    stated = Strategy() if ask.strategy is None else ask.strategy
    if not isinstance(stated, Strategy):
        stated = parse_strategy(stated, global_batch=ask.global_batch)
    return replace(stated, shard_rules=ask.shard_rules) if ask.shard_rules else stated


def cost_model_of(ask: Training) -> CostModel | None:
    """Return the cost model that ``ask`` holds, or names by its events and bundles; ``None`` for the default one."""
    if ask.cost_model is not None:
        return ask.cost_model
    learned = learned_cost_model([Path(path) for path in ask.bundle]) if ask.bundle or ask.events else None
    if ask.events is None or learned is None:
        return learned
    from traincast.estimate.events.model import EventsCostModel, read_events

    return EventsCostModel(read_events(ask.events), learned)


def _check(ask: Training) -> None:
    """Refuse values of the wrong type: Python checks none."""
    if isinstance(ask, Ask):
        for rule in ask.shard_rules:
            wanted = "pairs of a pattern and column, row or replicate"
            expect("shard_rules", ask.shard_rules if isinstance(rule, str) else rule, tuple, wanted)
        expect("conditions", ask.conditions, (Conditions, type(None)), "Conditions")
    if ask.cost_model is not None:
        expect("cost_model", ask.cost_model, CostModel, "a CostModel")
    expect("job", ask.job, (JobSettings, type(None)), "JobSettings")
    wanted = f"a whole number from 1 to {MAX_BATCH}"
    expect("global batch", ask.global_batch, int, wanted)
    if not 1 <= ask.global_batch <= MAX_BATCH:
        raise RequestError(f"global batch {ask.global_batch}: expected {wanted}")
    expect("cluster", ask.cluster, (str, Cluster), "a name such as dgx-h100:4, or a Cluster")
    expect("power limit", ask.power_limit, (int, float, type(None)), "a number of watts")
    if ask.power_limit is not None and not 1.0 <= ask.power_limit <= MAX_WATTS:
        raise RequestError(f"power limit {ask.power_limit:g} W: expected a number from 1 to {MAX_WATTS:g}")
    expect("seq", ask.seq, (int, type(None)), "a whole number of tokens")
    if ask.layout is not None and ask.layout not in LAYOUTS:
        raise RequestError(f"layout {str(ask.layout)[:40]!r}: expected {' or '.join(LAYOUTS)}")
    expect("optimizer", ask.optimizer, (bool, str), "True, False or a name such as adamw")


def _tuning(ask: Training, runtime: Runtime | None) -> Callable[[OperatorGraph], OperatorGraph]:
    """Return what makes a graph that of the fine-tuning of ``ask``; refuse words that describe none.

    Adapters whose dtype is not stated have that of ``runtime``, if the ask names one.
    """
    if ask.lora is None and not ask.freeze and ask.quantize is None:
        return lambda graph: graph
    from traincast.graph.tuning.tune import fine_tuned, parse_fine_tuning

    stored = runtime.defaults.adapter_dtype if runtime else "fp32"
    tuning = parse_fine_tuning(ask.lora, ask.freeze, ask.quantize, dtype=stored)
    return lambda graph: fine_tuned(graph, tuning)


def _graph(ask: Training, *, allow_code: bool) -> OperatorGraph:
    if isinstance(ask.model, OperatorGraph):
        return ask.model
    inputs = ask.example_inputs if isinstance(ask, Ask) else None
    return load_model(ask.model, inputs, seq=ask.seq, use_cache=ask.use_cache, allow_code=allow_code)


def _strategy(request: Request, ask: Ask, *, allow_code: bool) -> Strategy:
    stated = stated_strategy(ask)
    if not isinstance(ask.strategy, str):  # a Strategy, which states everything
        return stated
    check_schedule_of_data(stated.schedule, allow_code=allow_code)
    if says_micro_batch(ask.strategy):
        return stated
    chosen = choose_micro_batch(for_workers(replace(request, strategy=stated)))
    return replace(stated, num_microbatches=chosen.num_microbatches)
