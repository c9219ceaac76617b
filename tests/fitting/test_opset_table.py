"""The shipped measurements of the operator set, and the tables that the study of rivals prints of them."""

from __future__ import annotations

from functools import cache

import pyarrow.parquet as pq
import pytest
from benchmarks.opset import KINDS, TABLE, by_family, by_kind, run_differences

from traincast.estimate.operators.features import family_of, shapes_of
from traincast.fitting.operators.rivals import ALL, RivalScore
from traincast.fitting.rows.dataset import OperatorTable, read_operators
from traincast.fitting.split import protocol_split


@cache
def measured() -> OperatorTable:
    return read_operators(TABLE, derive=True)


def test_the_shipped_table_is_small_and_is_read_but_for_rows_that_were_disturbed() -> None:
    assert TABLE.stat().st_size < 200_000
    rows = pq.read_table(TABLE).to_pylist()
    suspect = sum(row["suspect"] for row in rows)
    assert len(measured()) == len(rows) - suspect
    assert suspect < 0.25 * len(rows)
    assert {problem.reason for problem in measured().problems} == {"marked as suspect in the table"}
    assert {row["source"] for row in rows} == {"run 1", "run 2"}
    assert {row["framework"] for row in rows} == {"PyTorch 2.13.0 cpu"}
    assert {row["device"] for row in rows} == {"Intel(R) Xeon(R) Processor (1 of 2 cores)"}


def test_every_measured_operator_has_a_family_and_a_kind() -> None:
    named = {name for names in KINDS.values() for name in names.split()}
    found = set()
    for operator in measured().configurations:
        family = family_of(operator)
        assert family is not None
        found.add(shapes_of(family, [operator]).names[0])
    assert found == named


def test_no_operator_is_on_both_sides_of_the_partition() -> None:
    table = measured()
    split = protocol_split(table.key, table.groups, table.seconds)
    train, test = (set(table.key[side.rows].tolist()) for side in (split.train, split.test))
    assert not train & test
    assert len(test) / len(train | test) == pytest.approx(0.14, abs=0.02)


def test_runs_differ_by_per_cent_of_their_mean() -> None:
    table = measured()
    first = next(i for i, key in enumerate(table.key.tolist()) if table.key.tolist().count(key) == 2)
    pair = table.take(table.key == table.key[first])
    a, b = pair.seconds.tolist()
    [found] = run_differences(pair).values()
    assert found == [pytest.approx(abs(a - b) / ((a + b) / 2) * 100)]
    assert run_differences(pair.take(pair.index == pair.index[0])) == {}


def test_tables_have_mean_errors_over_seeds_and_by_kind() -> None:
    def score(rival: str, operator: str, n: int, mape: float) -> RivalScore:
        return RivalScore(
            rival=rival,
            operator=operator,
            cell="conv/pytorch/fp32/x",
            n=n,
            mape=mape,
            median=0.0,
            p90=0.0,
            parameters=1,
            train_s=0.0,
            inference_s=0.0,
        )

    rivals = ("roofline", "LightGBM", "FI-Net", "mean")
    seeds = [
        [score(r, ALL, 10, 20.0 + seed) for r in rivals]
        + [score(r, "conv2d.bwd", 1, 10.0) for r in rivals]
        + [score(r, "convolution_backward", 3, 20.0) for r in rivals]
        for seed in (0, 2, 4)
    ]
    differ = {"conv2d.bwd": [1.0, 3.0]}
    lines = by_family(seeds, differ).splitlines()
    assert lines[0] == "| MAPE, % | conv |"
    assert "| FI-Net | 22.0 ± 1.6 |" in lines
    assert lines[-2:] == ["| operators tested | 10 |", "| two runs differ by | 2.0 |"]
    assert by_kind([s for found in seeds for s in found], differ).splitlines()[2:] == [
        "| convolutions, both gradients | 4 | 17.5 % | 17.5 % | 17.5 % | 17.5 % | 2.0 % |"
    ]
