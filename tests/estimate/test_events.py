"""The cost model of measured events: what it finds, what it leaves to others, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast import (
    AnalyticalCostModel,
    Cluster,
    FileFormatError,
    Operator,
    RequestError,
    TensorSpec,
    files,
    load_cluster,
    predict,
)
from traincast.estimate.events.file import CARD, TABLE, EventsCard, Row, contents_of, row_of
from traincast.estimate.events.keys import collective_key, operator_key, text_of, update_key
from traincast.estimate.events.model import BESIDE_TRAFFIC, PURPOSES, Events, EventsCostModel, events_of, read_events
from traincast.graph import DType, OpKind, Phase
from traincast.report.outlook import COMPOSED
from traincast.work import Collective, HostCopy, Launch, Transfer, Work

MODEL = "gpt:layers=2,hidden=32,heads=2,vocab=64,seq=8"


def card(**changes: object) -> EventsCard:
    """The card of events of one thread of the catalog's processor."""
    made = EventsCard(
        device="cpu", machine="a processor", backend="gloo", threads=1, compute="real", network="", precision="fp32",
        torch="2", host="here", statistic="mean", link_bandwidth=1.25e9, cost={},
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def gemm(m: int, dtype: DType = DType.FP32) -> Operator:
    """A square product."""
    spec = TensorSpec((m, m), dtype)
    return Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(spec, spec), outputs=(spec,))


def update(count: int) -> Operator:
    """An update of ``count`` parameters by AdamW."""
    spec = TensorSpec((count,), DType.FP32)
    return Operator(name="adamw", kind=OpKind.OPTIMIZER, phase=Phase.OPTIMIZER, inputs=(spec,) * 4, outputs=(spec,) * 3)


def measured(op: Operator, seconds: float, *, num_ranks: int = 1) -> Row:
    """The row of an operator, with an interval of 10 %."""
    return row_of(
        "operator", operator_key(op), mean_s=seconds, low_s=0.9 * seconds, high_s=1.1 * seconds, repeats=5,
        num_ranks=num_ranks, dtype=op.dtype.value,
    )  # fmt: skip


def message(kind: str, nbytes: float, seconds: float) -> Row:
    """The row of a message between two nodes."""
    return row_of(
        "transfer" if kind == "p2p" else "collective", collective_key(kind, nbytes, 2, 2), mean_s=seconds,
        low_s=seconds, high_s=seconds, repeats=5, nbytes=nbytes, num_ranks=2, num_nodes=2, collective=kind,
    )  # fmt: skip


def launches() -> list[Row]:
    """Rows that say that operators include what the host does."""
    return [
        row_of("launch", text_of(["launch", name]), mean_s=0.0, low_s=0.0, high_s=0.0, repeats=0, collective=name)
        for name in PURPOSES
    ]


def folder(path: Path, rows: Sequence[Row], **changes: object) -> Events:
    """The events of a folder that was written and read again."""
    files.write_folder(path, contents_of(card(**changes), rows))
    return read_events(path)


def cluster(nodes: int = 4) -> Cluster:
    """Servers with one processor each."""
    return load_cluster(f"cpu-server:{nodes}x1")


ROWS = [
    measured(gemm(64), 1e-3),
    {**measured(gemm(32), 4e-3), "key": update_key("adamw"), "nbytes": 4000.0},
    message("all_reduce", 1e6, 2e-3),
    message("all_reduce", 1e7, 2e-2),
    message("p2p", 1e6, 1e-3),
    *launches(),
]


def test_measured_works_take_their_times_and_others_those_of_the_fallback(tmp_path: Path) -> None:
    model = EventsCostModel(folder(tmp_path / "events", ROWS), AnalyticalCostModel())
    other = replace(gemm(64), name="a product that nobody measured")
    works: list[Work] = [gemm(64), other, Launch(kernels=3.0), HostCopy(nbytes=1e6)]
    found = model.estimate(works, cluster())
    told = AnalyticalCostModel().estimate([other, HostCopy(nbytes=1e6)], cluster())
    assert found.seconds.tolist() == [1e-3, told.seconds[0], 0.0, told.seconds[1]]
    assert (found.low[0], found.high[0]) == (0.9 * 1e-3, 1.1 * 1e-3)
    assert found.source.tolist() == [0, 2, 0, 2]


def test_an_update_takes_time_in_proportion_to_its_parameters(tmp_path: Path) -> None:
    model = EventsCostModel(folder(tmp_path / "events", ROWS), AnalyticalCostModel())
    assert model.estimate([update(1000), update(500)], cluster()).seconds.tolist() == [4e-3, 2e-3]


def test_messages_are_interpolated_and_carried_to_more_ranks(tmp_path: Path) -> None:
    model = EventsCostModel(folder(tmp_path / "events", ROWS), AnalyticalCostModel())
    works: list[Work] = [
        Collective(kind="all_reduce", nbytes=1e6, num_ranks=2, num_nodes=2),
        Collective(kind="all_reduce", nbytes=2e6, num_ranks=4, num_nodes=4),
        Transfer(nbytes=1e6, crosses_nodes=True),
        Transfer(nbytes=5e5, crosses_nodes=True, sharing=2),
    ]
    assert model.estimate(works, cluster()).seconds == pytest.approx([2e-3, 6e-3, 1e-3, 1e-3], rel=1e-12)


def test_a_kind_or_a_place_that_was_not_measured_is_left_to_the_fallback(tmp_path: Path) -> None:
    model = EventsCostModel(folder(tmp_path / "events", ROWS), AnalyticalCostModel())
    works: list[Work] = [Collective(kind="all_gather", nbytes=1e6, num_ranks=2, num_nodes=2), Transfer(nbytes=1e6)]
    assert model.estimate(works, cluster()).source.tolist() == [2, 2]


def test_a_slower_link_stretches_what_a_message_takes_beyond_the_smallest(tmp_path: Path) -> None:
    events = folder(tmp_path / "events", [message("p2p", 1.0, 1e-3), message("p2p", 1e6, 5e-3)])
    slow = replace(cluster(), inter_node=replace(cluster().inter_node, bandwidth=1.25e9 / 2))
    model = EventsCostModel(events, AnalyticalCostModel())
    send = Transfer(nbytes=1e6, crosses_nodes=True)
    assert model.estimate([send], cluster()).seconds[0] == 5e-3
    assert model.estimate([send], slow).seconds[0] == pytest.approx(9e-3, rel=1e-12)


def test_operators_timed_beside_another_process_are_for_plans_with_messages(tmp_path: Path) -> None:
    rows = [measured(gemm(64), 1e-3), measured(gemm(64), 3e-3, num_ranks=2), message("p2p", 1e6, 1e-3)]
    model = EventsCostModel(folder(tmp_path / "events", rows), AnalyticalCostModel())
    assert model.estimate([gemm(64)], cluster()).seconds.tolist() == [1e-3]
    assert model.estimate([gemm(64), Transfer(nbytes=1e6, crosses_nodes=True)], cluster()).seconds[0] == 3e-3


def test_the_cluster_of_a_forecast_has_the_measured_interference(tmp_path: Path) -> None:
    row = row_of("interference", BESIDE_TRAFFIC, mean_s=0.4, low_s=0.3, high_s=0.5, repeats=5)
    model = EventsCostModel(folder(tmp_path / "events", [row]), AnalyticalCostModel())
    assert model.on(cluster()).interference == 0.4
    assert EventsCostModel(replace(model.events, interference=None), AnalyticalCostModel()).on(cluster()) == cluster()


@pytest.mark.parametrize(
    ("changes", "op", "said"),
    [
        ({"device": "h100-sxm5-80gb"}, gemm(64), "were measured on h100-sxm5-80gb, but cpu-server has cpu"),
        ({"backend": "nccl"}, gemm(64), "were measured with nccl, but cpu communicates with gloo"),
        ({}, gemm(64, DType.BF16), "were measured in fp32, but the step computes in bf16: use --precision fp32"),
    ],
)
def test_events_of_another_device_backend_or_dtype_are_refused(
    changes: dict[str, object], op: Operator, said: str, tmp_path: Path
) -> None:
    model = EventsCostModel(folder(tmp_path / "events", ROWS, **changes), AnalyticalCostModel())
    with pytest.raises(RequestError, match=said):
        model.estimate([op], cluster())


@pytest.mark.parametrize(
    ("measured_in", "precision"), [(DType.FP32, "amp"), (DType.FP32, "bf16"), (DType.FP16, "fp32")]
)
def test_products_decide_the_dtype_of_a_step(measured_in: DType, precision: str, tmp_path: Path) -> None:
    """Norms, losses and updates are in fp32 in every mixed precision: that they were measured says nothing."""
    norm = Operator(
        name="native_layer_norm", kind=OpKind.LAYER_NORM, phase=Phase.FORWARD,
        inputs=(TensorSpec((64, 64)),), outputs=(TensorSpec((64, 64)),),
    )  # fmt: skip
    rows = [measured(gemm(64, measured_in), 1e-3), measured(norm, 1e-3), *launches()]
    model = EventsCostModel(folder(tmp_path / "events", rows), AnalyticalCostModel())
    with pytest.raises(RequestError, match=f"were measured in {measured_in.value}, but the step computes in"):
        predict(
            MODEL,
            cluster="cpu-server:1x1",
            global_batch=2,
            strategy="dp=1,mbs=2",
            precision=precision,
            cost_model=model,
        )


def test_measured_operators_say_nothing_about_those_of_another_dtype(tmp_path: Path) -> None:
    """What products in fp32 took over their estimates is not carried to those in fp16 beside them."""
    many = [measured(gemm(8 * m), 1e-2) for m in range(1, 12)]
    model = EventsCostModel(folder(tmp_path / "events", many), AnalyticalCostModel())
    wide, narrow = replace(gemm(512), name="bmm"), replace(gemm(60, DType.FP16), name="bmm")
    found = model.estimate([wide, narrow], cluster())
    told = AnalyticalCostModel().estimate([wide, narrow], cluster())
    assert found.seconds[0] != told.seconds[0]
    assert (found.seconds[1], found.low[1], found.high[1]) == (told.seconds[1], told.low[1], told.high[1])


def test_a_folder_that_is_damaged_or_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with pytest.raises(FileFormatError, match="does not exist: --events takes a folder"):
        read_events(path)
    path.mkdir()
    with pytest.raises(FileFormatError, match=r"has no events\.json"):
        read_events(path)
    folder(path, ROWS)
    text = (path / CARD).read_text(encoding="utf-8")
    (path / CARD).write_text(text.replace('"format": 1', '"format": 7'), encoding="utf-8")
    with pytest.raises(FileFormatError, match="has format 7, but this Traincast reads format 1"):
        read_events(path)
    (path / CARD).write_text(text[:20], encoding="utf-8")
    with pytest.raises(FileFormatError, match="is damaged"):
        read_events(path)
    (path / CARD).write_text(text, encoding="utf-8")
    (path / TABLE).write_bytes(b"no table")
    with pytest.raises(FileFormatError, match="cannot be read as a table"):
        read_events(path)
    files.write_folder(path, contents_of(card(), [{**ROWS[0], "mean_s": -1.0}]))
    with pytest.raises(FileFormatError, match="row 0 has a time or size"):
        read_events(path)


class OneMillisecond:
    """Every operator takes 1 ms, and nothing else takes any time."""

    def rows(self, works: Sequence[Work]) -> list[Row]:
        """The events of all operators."""
        return [*(measured(work, 1e-3) for work in works if isinstance(work, Operator)), *launches()]


def test_a_step_is_the_sum_of_its_measured_operators(tmp_path: Path) -> None:
    how = {"cluster": "cpu-server:1x1", "global_batch": 2, "strategy": "dp=1,mbs=2", "precision": "fp32"}
    plain = predict(MODEL, runtime="pytorch", **how)  # type: ignore[call-overload]
    plan = plain.lowered.plan
    operators = np.array([isinstance(work, Operator) for work in plan.works])
    rows = OneMillisecond().rows(plan.works)
    model = EventsCostModel(events_of(tmp_path, card(), rows), AnalyticalCostModel())
    result = predict(MODEL, runtime="pytorch", cost_model=model, **how)  # type: ignore[call-overload]
    assert result.report.step_s == pytest.approx(1e-3 * plan.work_counts()[operators].sum(), rel=1e-9)
    assert result.report.estimated_by == {"measured": 1.0, "learned": 0.0, "analytical": 0.0}
    assert result.report.low_s == pytest.approx(0.9 * result.report.step_s, rel=1e-9)
    assert result.report.high_s == pytest.approx(COMPOSED[1] * result.report.step_s, rel=1e-9)
    assert not [warning for warning in result.report.warnings if "no measured time" in warning]


def test_works_without_a_measured_time_are_named_with_their_share(tmp_path: Path) -> None:
    how = {"cluster": "cpu-server:1x1", "global_batch": 2, "strategy": "dp=1,mbs=2", "precision": "fp32"}
    plan = predict(MODEL, runtime="pytorch", **how).lowered.plan  # type: ignore[call-overload]
    rows = [row for row in OneMillisecond().rows(plan.works) if '"addmm"' not in row["key"]]
    model = EventsCostModel(events_of(tmp_path, card(), rows), AnalyticalCostModel())
    report = predict(MODEL, runtime="pytorch", cost_model=model, **how).report  # type: ignore[call-overload]
    said = next(warning for warning in report.warnings if "no measured time" in warning)
    missing = sum(isinstance(work, Operator) and work.name == "addmm" for work in plan.works)
    assert said.startswith(f"{missing} of {len(plan.works)} distinct works have no measured time ({missing} addmm)")
    assert 0.9 < report.estimated_by["measured"] < 1.0
