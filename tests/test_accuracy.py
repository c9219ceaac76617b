"""The accuracy page follows from a study alone: every section, every plot, nothing left out in silence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import figures
from benchmarks.accuracy import main
from benchmarks.page import first_looks
from benchmarks.worst import Reasons, worst

SECTIONS = (
    "What is compared", "Errors on measured runs", "Errors by model, GPU, scale and strategy", "A source left out",
    "With and without the learned correction", "How many runs a calibration needs", "Picking the best strategy",
    "Memory", "The worst cases", "What rows do not state", "Skipped rows",
)  # fmt: skip
FRONT = ("On a run like yours", "On published runs, with and without calibration", "How to use these figures")


def row(index: int, **changes: Any) -> dict[str, Any]:
    """A row of a study, forecast 10 % too slow zero-shot and 5 % when calibrated."""
    measured = changes.pop("measured", 1.0 + index)
    forecast = {"zero_shot": 1.1, "calibrated": 1.05, "calibrated_physics": 1.06, "usual": 1.05, "stalled": 10.5}
    forecast |= {"unseen_model": 1.07, "unseen_model_physics": 1.08, "low": 0.9, "high": 1.2}
    forecast |= {"left_out_low": 0.7, "left_out_high": 2.0}
    return {
        "table": "steps",
        "index": index,
        "source": "ultrascale",
        "group": "ultrascale",
        "model": "llama",
        "family": "llama",
        "device": "h100-sxm5-80gb",
        "runtime": "nanotron",
        "strategy": "dp=4,tp=2,pp=2,num_microbatches=8,schedule=1f1b,zero=1",
        "n_gpus": 16.0,
        "nodes": 2,
        "micro_batch": 1.0,
        "precision": "bf16",
        "moe": False,
        "stall_chance": 0.2,
        "measured": measured,
        "assumed": ["optimizer not stated: adamw", *(["zero not stated: 1"] if index == 1 else [])],
        "measured_memory": 40e9,
        "predicted_memory": 42e9,
        **{name: factor * measured for name, factor in forecast.items()},
        **changes,
    }


@pytest.fixture
def study() -> dict[str, Any]:
    steps = [row(i) for i in range(5)]
    steps[3] |= {"usual": 0.4, "calibrated": 0.4, "stalled": 4.12}  # stalled, forecast not to
    net: dict[str, Any] = {
        "table": "dp-steps",
        "source": "cnn_classification",
        "group": "images-deep-learning-examples",
        "model": "resnet50",
        "family": "resnet50",
    }
    net |= {"strategy": "dp=8", "stall_chance": 0.0, "runtime": "pytorch", "n_gpus": 8, "nodes": 1, "micro_batch": None}
    others = [row(i, **net, parts={"conv": 3.0, "memory": 1.0}) for i in range(3)]
    others[2] |= dict.fromkeys(("calibrated", "unseen_model", "low", "high", "usual", "stalled"))
    curve = [
        {"runs": n, "mean_error": 10.0 / (n + 1), "median_error": 1.0, "best": 1.0, "worst": 1.0} for n in (0, 1, 3)
    ]
    group = {"device": "h100-sxm5-80gb", "runtime": "nanotron", "runs": 5, "correction": True, "learning_curve": curve}
    return {
        "rows": [*steps, *others],
        "skipped": [{"table": "steps", "index": 9, "source": "ultrascale", "reason": "it failed; use less"}],
        "groups": [{"source": "ultrascale", **group}, {"source": "ultrascale", **group, "runs": 15}],
    }


def test_the_page_has_all_sections_and_links_to_plots_that_are_there(study: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps(study), encoding="utf-8")
    main(["--study", str(tmp_path / "study.json"), "--page", str(tmp_path / "accuracy.md")])
    front = (tmp_path / "accuracy.md").read_text(encoding="utf-8")
    assert all(f"\n## {section}\n" in front for section in FRONT)
    text = (tmp_path / "accuracy-tables.md").read_text(encoding="utf-8")
    assert all(f"\n## {section}\n" in text for section in SECTIONS)
    assert "| it failed | 1 |" in text
    shown = re.findall(r"\]\((accuracy/[^)]+\.svg)\)", text)
    assert sorted(shown) == sorted(f"accuracy/{path.name}" for path in (tmp_path / "accuracy").iterdir())
    for name in shown:
        ElementTree.parse(tmp_path / name)
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_the_page_of_the_documents_was_written_by_the_generator() -> None:
    docs = Path(__file__).parents[1] / "docs"
    for name, sections in (("accuracy", FRONT), ("accuracy-tables", SECTIONS)):
        text = (docs / f"{name}.md").read_text(encoding="utf-8")
        assert all(f"\n## {section}\n" in text for section in sections)


def test_the_first_page_can_be_read_in_two_minutes() -> None:
    """About 240 words a minute; the list of weaknesses is for those who read on."""
    text = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert len(text.partition("## Known weaknesses")[0].split()) < 480


def test_first_looks_are_summed_up_by_kind() -> None:
    look = {"kind": "steps", "date": "2030-01-01", "commit": "abc"}
    looks = [
        look | {"rows": "10", "median_ape": "10.0", "coverage_90": "0.5"},
        look | {"rows": "30", "median_ape": "20.0", "coverage_90": "0.9"},
        look | {"rows": "0", "median_ape": "", "coverage_90": ""},
    ]
    shown = first_looks(looks).splitlines()
    assert shown[2] == "| language models under a stated strategy | 2 | 40 | **15 %** | 10 % … 20 % | 80 % |"


def test_errors_are_those_of_the_rows_that_have_a_forecast(study: dict[str, Any]) -> None:
    rows = [r for r in study["rows"] if r["table"] == "dp-steps"]
    made = figures.errors(rows, "calibrated")
    assert made.n == 2
    assert made.mean == pytest.approx(5.0)
    assert made.bias == pytest.approx(5.0)
    assert figures.covered(rows) == 1.0
    assert math.isnan(figures.errors([], "calibrated").mean)


def test_a_pick_regrets_what_it_took_beyond_the_best() -> None:
    rows = [
        row(0, measured=2.0, zero_shot=1.0),
        row(1, measured=1.0, zero_shot=3.0),
        row(2, measured=4.0, zero_shot=4.0),
    ]
    made = figures.picks([rows], lambda r: r["zero_shot"])
    assert (made.groups, made.best) == (1, 0.0)
    assert made.mean == pytest.approx(100.0)
    assert made.rank == pytest.approx(0.5)
    assert figures.random_picks([rows]).mean == pytest.approx(100.0 * (7.0 / 3.0 - 1.0))


def test_curves_of_groups_count_by_their_runs(study: dict[str, Any]) -> None:
    study["groups"][1]["learning_curve"] = [{"runs": 0, "mean_error": 2.0}]
    assert figures.curves(study["groups"])["ultrascale"] == pytest.approx({0: 4.0, 1: 5.0, 3: 2.5})


def test_a_strategy_is_told_by_everything_that_it_does() -> None:
    assert figures.axes(row(0, strategy="tp=16,pp=2,num_microbatches=4", nodes=4, n_gpus=32)) == [
        "tp > 1", "pp > 1", "tp across nodes", "ZeRO stage 0", "recomputation: none", "precision: bf16",
    ]  # fmt: skip
    assert figures.samples(row(0, micro_batch=2.0)) == 64


def test_the_worst_case_comes_first_and_says_why(study: dict[str, Any]) -> None:
    steps = [r for r in study["rows"] if r["table"] == "steps"]
    first = worst(steps, 1)[0]
    assert first["index"] == 3
    assert Reasons(study).of(first) == [
        "stalled, but no stall was forecast (probability of a stall 20 %; in its own mode +3 %)"
    ]
    net = next(r for r in study["rows"] if r["table"] == "dp-steps")
    assert "mostly convolutions (75 % of all work)" in Reasons(study).of(net)
