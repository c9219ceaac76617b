"""Members of a family laid out one by one as plans, for runtimes whose steps are not made of whole passes.

A search puts steps together from templates of blocks (:mod:`traincast.searching.bulk.outline`). A runtime that cuts
buckets inside a block, or whose messages wait for both sides, does not fit these templates. Its members are laid out
and evaluated as single forecasts are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traincast.searching.bulk.family import EvaluatedFamily
from traincast.searching.bulk.steps import slots_of
from traincast.searching.bulk.works import Works
from traincast.simulate import Evaluator
from traincast.strategy.lower import Layout
from traincast.strategy.program.precision import Precision
from traincast.strategy.runtime import Runtime


def needs_whole_plans(runtime: Runtime) -> bool:
    """Whether steps of ``runtime`` are laid out as whole plans."""
    return runtime.exchange.rendezvous or runtime.exchange.bucket_cut != "block" or not runtime.exchange.overlap_shards


def run_whole(entry: EvaluatedFamily, works: Works, precision: Precision) -> None:
    """Fills in the seconds of all members that fit."""
    family = entry.family
    plans = []
    for batch in entry.batches:
        way, pieces = batch.way, entry.cuts[batch.cut].pieces
        slots, _ = slots_of(way.schedule, family.degrees.pp, family.num_microbatches, way.chunks)
        prepared = replace(entry.prepared(entry.programs_of(way), pieces, way, precision), slots=slots)
        for at in np.flatnonzero(batch.load <= 1.0).tolist():
            request = replace(entry.request, strategy=entry.strategy(batch, entry.sharings[at]))
            plan = Layout(request=request, prepared=prepared).plan("segment")
            plans.append((batch, at, plan, np.array([works.number(work) for work in plan.works], dtype=np.int64)))
    seconds = works.settle()
    for batch, at, plan, numbers in plans:
        batch.seconds[at] = Evaluator(plan)(seconds[numbers])
