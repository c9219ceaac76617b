"""Every example runs and prints what it says it does."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run an example as a script, in an empty folder, and return what it prints."""

    def run(name: str, *arguments: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern: str, text: str) -> float:
    """The number that the group of ``pattern`` finds in ``text``."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in {text!r}"
    return float(found[1].replace(",", ""))


def test_predict_llama_prints_a_step_inside_its_interval(run: Run) -> None:
    text = run("predict_llama")
    low, high = number(r"between ([\d.]+)", text), number(r"and ([\d.]+) s", text)
    assert 0 < low < number(r"step ([\d.]+) s", text) < high
    assert 10 < number(r"MFU of (\d+)%", text) < 90


def test_compare_strategies_ranks_by_fit_and_time_and_shows_a_refusal(run: Run) -> None:
    text = run("compare_strategies")
    assert "refused: dp·cp·tp·pp = 8·1·3·1 = 24 ranks" in text
    rows = re.findall(r"^(dp\S+) +([\d.]+) s .* (fits|does not fit)$", text, re.M)
    order = [(verdict != "fits", float(seconds)) for _, seconds, verdict in rows]
    assert len(rows) == 7
    assert order == sorted(order)


def test_my_model_has_the_parameters_that_its_layers_add_up_to(run: Run) -> None:
    text = run("my_model")
    width, layers, vocab = 2048, 12, 50_000
    block = 2 * 4 * width * width + (4 * width + width) + 2 * width
    assert number(r"([\d,]+) parameters", text) == 2 * vocab * width + vocab + layers * block
    assert number(r"step ([\d.]+) ms", text) > 0


def test_a_step_of_jax_has_the_parameters_of_its_weights(run: Run) -> None:
    pytest.importorskip("jax", reason="needs JAX, which make test-all installs")
    text = run("jax_step")
    assert number(r"([\d,]+) parameters", text) == 64 * 256 + 256 * 10
    assert number(r"step ([\d.]+) ms", text) > 0


def test_own_cluster_is_slower_and_cheaper_than_what_it_resembles(run: Run) -> None:
    text = run("own_cluster")
    assert text.startswith("lab: 16 × 8 h100-500w\n")
    steps = [float(s) for s in re.findall(r"step ([\d.]+) s", text)]
    costs = [int(s.replace(",", "")) for s in re.findall(r"\$([\d,]+)", text)]
    assert steps[0] > steps[1] > 0
    assert 0 < costs[0] < costs[1]


def test_trace_and_page_writes_both_files(run: Run, tmp_path: Path) -> None:
    text = run("trace_and_page", str(tmp_path))
    assert number(r"^([\d,]+) events", text) > 1000
    assert len(re.findall(r"^stage \d: computes \d+%", text, re.M)) == 4
    assert (tmp_path / "gpt.trace.json.gz").stat().st_size > 1000
    assert "<html" in (tmp_path / "gpt.html").read_text(encoding="utf-8")


def test_own_policy_keeps_the_laws_and_is_compared_with_two_others(run: Run) -> None:
    text = run("own_policy")
    assert text.startswith("ResponseRatio keeps the laws of a queue\n")
    rows = re.findall(r"^(\S+): mean completion ([\d.]+) h, 99th percentile ([\d.]+) h$", text, re.M)
    assert [name for name, _, _ in rows] == ["fifo", "sjf", "ResponseRatio"]
    assert all(0 < float(mean) < float(worst) for _, mean, worst in rows)


def test_every_example_is_short_and_tested_here() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.stem}"' in tested, f"{path.name} has no test"
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, f"{path.name} is long for an example"
