"""Blocks put together are what the works themselves come to, and distinct works are estimated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import AnalyticalCostModel, request_of
from tests.searching.problems import MOE, TINY
from traincast import Operator
from traincast.graph import OpKind, Phase
from traincast.searching.bulk.blocks import DEVICE, HOST, LEAD, OPERATORS, PASSES, BlockTable
from traincast.searching.bulk.works import Works
from traincast.strategy import Segment
from traincast.strategy.plan import Overlap
from traincast.strategy.prepare import prepare
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Behind, Item
from traincast.strategy.schedules import Pass
from traincast.work import Launch, Transfer, Work

Floats = npt.NDArray[np.float64]

works_of_a_run = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12)


def chosen(works: Sequence[Work]) -> Floats:
    """The seconds that launches and transfers say themselves."""
    return np.array([work.kernels if isinstance(work, Launch) else _told(work) for work in works])


def _told(work: Work) -> float:
    assert isinstance(work, Transfer)
    return float(work.nbytes)


def item(launch: float, seconds: float) -> Item:
    return Item(
        work=Transfer(nbytes=seconds, crosses_nodes=False), launches=Launch(kernels=float(launch)), label="a work"
    )


def program_with(forward: tuple[Item, ...]) -> BlockProgram:
    some = prepare(request_of(model=TINY)).programs[0]
    return replace(some, forward=forward, backward=(), backward_inputs=(), backward_weights=())


@settings(deadline=None, derandomize=True, max_examples=80)
@given(runs=st.lists(works_of_a_run, min_size=1, max_size=4))
def test_runs_in_line_are_what_their_works_are_as_one_segment(runs: list[list[tuple[int, int]]]) -> None:
    works = Works(chosen)
    table = BlockTable.of([program_with(tuple(item(*pair) for pair in run)) for run in runs], works)
    rows = table.runs(works.settle())[Pass.FORWARD :: PASSES]
    lead, device, host = 0.0, 0.0, 0.0
    for row in rows:
        lead = max(lead, host - device + row[LEAD])
        device, host = device + row[DEVICE], host + row[HOST]
    seconds = np.array([value for run in runs for pair in run for value in pair], dtype=np.float64)
    numbers = np.arange(len(seconds))
    whole = Segment(launches=numbers[0::2], works=numbers[1::2], labels=numbers[0::2])
    assert (lead, device, max(0.0, host - lead)) == pytest.approx(whole.costs(seconds), rel=1e-12)
    assert not rows[:, OPERATORS].any()


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    here=st.integers(0, 50),
    behind=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    share=st.floats(0.0, 1.0),
    interference=st.floats(0.0, 1.0),
    waited=st.booleans(),
)
def test_what_runs_behind_works_costs_what_an_overlap_of_a_plan_does(
    here: int, behind: list[int], share: float, interference: float, waited: bool
) -> None:
    hides = Behind(
        works=tuple(Transfer(nbytes=b, crosses_nodes=True) for b in behind),
        share=share,
        interference=interference,
        waited=waited,
    )
    works = Works(chosen)
    table = BlockTable.of([program_with((replace(item(0, here), behind=hides),))], works)
    seconds = np.array([here, *behind], dtype=np.float64)
    overlap = Overlap(
        work=0, behind=tuple(range(1, len(seconds))), share=share, interference=interference, waited=waited
    )
    assert table.runs(works.settle())[0, DEVICE] == pytest.approx(overlap.cost(seconds), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("model", [TINY, MOE])
def test_every_pass_of_every_block_is_the_sum_of_its_items(model: str) -> None:
    request = request_of("dp=2,tp=2,pp=2,sp,recompute=selective,micro_batch=2", model=model, runtime="megatron")
    programs = prepare(request).programs
    works = Works(lambda some: AnalyticalCostModel().estimate(some, request.cluster).seconds)
    rows = BlockTable.of(programs, works).runs(works.settle())
    assert len(rows) == len(programs) * PASSES
    for number, program in enumerate(programs):
        for what in Pass:
            items = program.items(what)
            own = [i for i in items if i.behind is None]
            operators = sum(works.seconds[works.number(i.work)] for i in own if isinstance(i.work, Operator))
            row = rows[number * PASSES + what]
            assert row[HOST] == pytest.approx(sum(works.seconds[works.number(i.launches)] for i in items))
            assert row[OPERATORS] == pytest.approx(operators)
            assert row[DEVICE] >= sum(works.seconds[works.number(i.work)] for i in own) * (1 - 1e-12)
            if len(own) == len(items):
                assert row[DEVICE] == pytest.approx(sum(works.seconds[works.number(i.work)] for i in items))


def test_equal_works_have_one_number_and_are_estimated_once() -> None:
    asked: list[Work] = []

    def estimate(works: Sequence[Work]) -> Floats:
        asked.extend(works)
        return np.arange(len(works), dtype=np.float64)

    def operator(name: str) -> Operator:
        return Operator(name=name, kind=OpKind.COPY, phase=Phase.FORWARD, inputs=(), outputs=())

    works = Works(estimate)
    assert [works.number(w) for w in (operator("a"), Launch(), operator("a"), operator("b"))] == [0, 1, 0, 2]
    assert works.settle().tolist() == [0.0, 1.0, 2.0]
    assert works.number(operator("b")) == 2
    assert works.number(Launch(kernels=1.0)) == 3
    works.settle()
    works.settle()
    assert len(works) == len(asked) == len(set(asked)) == 4
