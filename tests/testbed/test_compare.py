"""A run is compared with its forecast: errors are those that were put into the run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.runs import Span, write_run
from traincast import FileFormatError
from traincast.testbed.compare import compare

CASES = [
    ("dp=4", 4, {}, {"forward", "backward", "optimizer", "dp gradients"}),
    ("dp=2,zero=3", 2, {"runtime": "fsdp"}, {"forward", "backward", "optimizer", "dp all_gather", "dp reduce_scatter"}),
    ("tp=2", 2, {"runtime": "pytorch"}, {"forward", "backward", "optimizer", "tp all_reduce"}),
    (
        "dp=2,pp=2,num_microbatches=4",
        4,
        {"runtime": "pytorch"},
        {
            "forward",
            "backward",
            "optimizer",
            "dp gradients",
            "pp send activations",
            "pp send gradients",
            "pp gradients",
        },
    ),
    ("dp=2", 2, {"factors": (1.0, 2.0)}, {"forward", "backward", "optimizer", "dp gradients"}),
    ("dp=2,servers=1", 2, {"runtime": "pytorch"}, {"forward", "backward", "optimizer", "push", "pull"}),
]


@pytest.mark.parametrize(("strategy", "ranks", "more", "classes"), CASES, ids=[case[0] for case in CASES])
def test_a_run_that_is_its_own_forecast_has_no_error(
    tmp_path: Path, strategy: str, ranks: int, more: dict[str, Any], classes: set[str]
) -> None:
    made = write_run(tmp_path / "run", strategy, ranks, **more)
    found = compare(tmp_path / "run").comparison
    assert found.batch_error == pytest.approx(0.0, abs=1e-12)
    assert found.activity_error == pytest.approx(0.0, abs=1e-12)
    assert found.activity_noise == pytest.approx(0.0, abs=1e-12)
    assert found.predicted_s == made.report.step_s
    assert all(d.measured_idle_s == pytest.approx(d.predicted_idle_s, abs=1e-12) for d in found.by_device)
    assert {each.name for device in found.by_device for each in device.classes} == classes
    assert [device.rank for device in found.by_device][:ranks] == list(range(ranks))


def test_passes_of_a_pipeline_are_matched_one_by_one(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", "pp=2,num_microbatches=4", 2, runtime="pytorch", change=later(0.1))
    found = compare(tmp_path / "run").comparison
    step = made.report.step_s
    forward = found.by_device[0].classes[0]
    assert forward.measured is not None and forward.measured.spans == 4
    assert forward.span_shift == pytest.approx(0.1 / step)
    assert forward.errors["busy"] == pytest.approx(0.0, abs=1e-9)
    assert found.span_shift == pytest.approx(0.1 / step)


def later(seconds: float, *, rank: int | None = None, category: str | None = None) -> Any:
    """Moves spans, or those of a rank and category."""

    def change(span: Span) -> Span:
        if (rank is not None and span["rank"] != rank) or (category is not None and span["category"] != category):
            return span
        return {**span, "start_s": span["start_s"] + seconds, "end_s": span["end_s"] + seconds}

    return change


def test_the_worst_disagreements_are_named(tmp_path: Path) -> None:
    step = write_run(tmp_path / "plain", "dp=2", 2).report.step_s
    write_run(tmp_path / "run", "dp=2", 2, change=later(0.2 * step, rank=1, category="optimizer"))
    found = compare(tmp_path / "run").comparison
    first, second, third = found.worst[:3]
    assert {(one.rank, one.name, one.figure) for one in (first, second)} == {
        (1, "optimizer", "start"), (1, "optimizer", "end"),
    }  # fmt: skip
    assert first.error == pytest.approx(-0.2)
    assert third.error == pytest.approx(0.0, abs=1e-9)
    assert found.by_device[0].error == pytest.approx(0.0, abs=1e-9)
    assert found.by_device[1].error == pytest.approx(0.2 * 2 / 3 / 4)
    assert found.activity_error == pytest.approx(found.by_device[1].error / 2)


def test_a_class_that_only_the_forecast_has_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2", 2, change=lambda span: None if span["category"] == "communication" else span)
    found = compare(tmp_path / "run").comparison
    assert "dp gradients of ranks 0, 1 is only in the forecast" in found.warnings
    (gradients,) = [each for each in found.by_device[0].classes if each.name == "dp gradients"]
    assert gradients.measured is None and gradients.predicted is not None
    assert gradients.error == pytest.approx(gradients.predicted.busy_s / found.measured_s)


def test_batch_error_is_signed_and_relative_to_the_run(tmp_path: Path) -> None:
    step = write_run(tmp_path / "plain", "dp=2", 2).report.step_s
    write_run(tmp_path / "run", "dp=2", 2, steps_s=[1.9 * step, 2.0 * step, 2.1 * step])
    found = compare(tmp_path / "run").comparison
    assert found.batch_error == pytest.approx(-0.5)
    assert found.repeat_cv == pytest.approx(0.1 * (2 / 3) ** 0.5 / 2)


def test_workers_of_asynchronous_servers_are_compared_by_busy_time(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2,servers=1,async", 2, runtime="pytorch")
    found = compare(tmp_path / "run").comparison
    assert [device.rank for device in found.by_device] == [0, 1]
    assert all(set(each.errors) == {"busy"} for device in found.by_device for each in device.classes)
    assert all(device.measured_idle_s is None for device in found.by_device)
    assert any("no common start" in warning for warning in found.warnings)


def test_json_has_the_promised_fields(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2", 2)
    found = compare(tmp_path / "run").comparison
    data = json.loads(json.dumps(found.to_dict()))
    assert {"measured_s", "predicted_s", "batch_error", "activity_error", "by_device", "repeat_cv", "worst",
            "warnings"} <= set(data)  # fmt: skip
    assert data["by_device"][0]["classes"][0]["measured"] == asdict(found.by_device[0].classes[0].measured)  # type: ignore[arg-type]
    assert data["warnings"] == ["no events were given: the times of the forecast come from bundles and physics"]


def test_without_a_run_one_line_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is not a folder: give the folder"):
        compare(tmp_path / "nothing")
    with pytest.raises(FileFormatError, match=r"has no run\.json"):
        compare(tmp_path)


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2", 2)
    edit(tmp_path / "run", format=2)
    with pytest.raises(FileFormatError, match="format 2: this Traincast reads runs of format 1"):
        compare(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_s": -1.0}, "step_s"),
        ({"step_s": None}, "step_s"),
        ({"steps_s": []}, "steps_s"),
        ({"num_ranks": "two"}, "num_ranks"),
        ({"ranks": [{"rank": 0, "factor": 0.0}]}, "factor"),
    ],
)
def test_damaged_descriptions_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_run(tmp_path / "run", "dp=2", 2)
    edit(tmp_path / "run", **change)
    with pytest.raises(FileFormatError, match=message) as caught:
        compare(tmp_path / "run")
    assert "\n" not in str(caught.value)


def edit(run: Path, **change: Any) -> None:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **change}))


def test_damaged_spans_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, "dp=2", 2, change=lambda span: {**span, "category": "dancing"})
    with pytest.raises(FileFormatError, match="unknown category 'dancing'"):
        compare(run)
    write_run(run, "dp=2", 2, change=lambda span: {**span, "end_s": -1.0})
    with pytest.raises(FileFormatError, match="ends before it starts"):
        compare(run)
    write_run(run, "dp=2", 2, change=lambda span: {**span, "category": "wait"})
    with pytest.raises(FileFormatError, match="has no spans"):
        compare(run)
    (run / "spans.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(FileFormatError, match="cannot be read as a table"):
        compare(run)
    (run / "spans.parquet").unlink()
    with pytest.raises(FileFormatError, match="no such file"):
        compare(run)
