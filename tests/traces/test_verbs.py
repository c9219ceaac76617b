"""``traincast.trace``: the verbs of the command line as functions of Python."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.made import Made, device_bound, host_bound, pair_of_ranks
from tests.traces.test_processor import document_without_device, step_on_processor
from traincast import Operator, RequestError, TensorSpec, TraincastError, predict, trace
from traincast.cli.main import main
from traincast.cli.real_runs.trace import trace as command
from traincast.graph import DType, OpKind, Phase
from traincast.traces.ask import ShowAsk, TraceChangesAsk


@pytest.mark.parametrize("verb", ["show", "replay", "whatif", "diff", "learn"])
def test_arguments_are_those_of_the_command_line(verb: str) -> None:
    asked = {str(p.name) for p in command.commands[verb].params} - {"as_json"}  # that is ``to_dict`` of a result
    assert set(inspect.signature(getattr(trace, verb)).parameters) == asked
    assert set(command.commands) == {name for name in dir(trace) if not name.startswith("_")}


def test_a_verb_takes_what_it_is_asked_as_one_record(tmp_path: Path) -> None:
    file = host_bound().write(tmp_path / "one.json")
    assert trace.show(ShowAsk(file)).to_dict() == trace.show(file).to_dict()
    changed = trace.whatif(TraceChangesAsk(file, host="2x"))
    assert changed.to_dict() == trace.whatif(file, host=2.0).to_dict()
    with pytest.raises(TypeError, match=r"show\(\) got an unexpected keyword argument 'hots'"):
        trace.show(file, hots=2)  # type: ignore[call-overload]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit):
        main(["trace", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_results_are_the_json_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(made.write(tmp_path / f"{i}.json")) for i, made in enumerate((host_bound(), device_bound())))
    shaped = str(document_without_device(step_on_processor()).write(tmp_path / "cpu.json"))
    pairs = [
        (trace.show(one), ["show", one]),
        (trace.replay(Path(one), fit_steps="even"), ["replay", one, "--fit-steps", "even"]),
        (trace.whatif([one], host=2.0, amp=True), ["whatif", one, "--host", "2x", "--amp"]),
        (trace.diff(one, other), ["diff", one, other]),
        (trace.learn(shaped), ["learn", shaped, "-o", str(tmp_path / "events")]),
    ]
    for result, arguments in pairs:
        assert json.loads(json.dumps(result.to_dict())) == printed(capsys, *arguments), arguments  # type: ignore[attr-defined]
        assert len(repr(result).splitlines()) == 1
        assert len(repr(result)) < 2000


def test_figures_of_one_trace_agree_between_the_verbs(tmp_path: Path) -> None:
    """A device that is 60 µs behind its host when the trace begins, and as much behind when it ends."""
    made = Made()
    for step in range(4):
        at = 100.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 100)
        made.op("aten::mm", at + 1, at + 20)
        made.kernel("gemm", (at + 2, at + 10), (at + 60, at + 155))
    made.device("kernel", "of the step before", 0, 58, stream=7, correlation=999)
    path = made.write(tmp_path / "t.json")
    steps = {
        trace.show(path).step_s,
        trace.show(path).breakdown.total_s,
        trace.replay(path).measured_step_s,
        trace.whatif(path, host=2.0).base_s,
        trace.diff(path, path).step.before_s,
    }
    assert list(steps) == pytest.approx([100e-6] * len(steps), rel=1e-9)


def test_a_queue_that_fills_makes_steps_of_the_host_short_and_not_the_step(tmp_path: Path) -> None:
    made = Made()
    for step, (begin, end) in enumerate([(0, 20), (20, 40), (40, 100), (100, 200)]):
        made.range(f"ProfilerStep#{step}", begin, end)
        made.op("aten::mm", begin + 1, begin + 9)
        made.kernel("gemm", (begin + 2.0, begin + 4.0), (100.0 * step + 5, 100.0 * step + 104))
    path = made.write(tmp_path / "t.json")
    summary = trace.show(path)
    assert [step["seconds"] for step in summary.to_dict()["steps"]] == pytest.approx([20e-6, 20e-6, 60e-6, 100e-6])
    assert summary.step_s == pytest.approx(404e-6 / 4)
    assert summary.ranks[0].paced_by == "device"
    assert summary.step_s == pytest.approx(trace.whatif(path, host=2.0).base_s)
    assert summary.breakdown.compute_s == pytest.approx(99e-6)
    assert [(o.name, o.kernels) for o in summary.operators] == [("aten::mm", 1.0)]
    assert summary.operators[0].seconds == pytest.approx(99e-6)


def test_ranges_with_gaps_are_timed_one_by_one(tmp_path: Path) -> None:
    made = host_bound()
    for step in range(3):
        made.range("forward", 100.0 * step, 100.0 * step + 48)
    path = made.write(tmp_path / "t.json")
    assert trace.show(path, range="forward").step_s == pytest.approx(48e-6)
    assert trace.whatif(path, range="forward", host=2.0).base_s == pytest.approx(48e-6)


def test_the_step_of_a_job_is_the_mean_over_its_ranks(tmp_path: Path) -> None:
    for rank, made in enumerate(pair_of_ranks()):
        made.range(f"ProfilerStep#{1}", 200, 300 + 100 * rank)
        made.op("aten::add", 210, 290)
        made.write(tmp_path / f"rank{rank}.json")
    summary = trace.show(tmp_path)
    assert [rank.step_s for rank in summary.ranks] == pytest.approx([150e-6, 200e-6])
    assert summary.step_s == pytest.approx(175e-6)
    assert trace.whatif(tmp_path, network=2.0).base_s == pytest.approx(175e-6)


def unexplained() -> Made:
    """Steps of 200 µs: three kernels, and one that starts 80 µs after the last; nothing recorded says why."""
    made = Made()
    for step in range(4):
        at = 200.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 200)
        for k in range(3):
            made.kernel("gemm", (at + 1 + 3 * k, at + 3 + 3 * k), (at + 5 + 5 * k, at + 9 + 5 * k))
        made.kernel("late", (at + 11, at + 14), (at + 100, at + 190))
        made.call("cudaDeviceSynchronize", at + 20, at + 195)
    return made


def test_a_trace_that_is_mostly_unexplained_answers_no_question(tmp_path: Path) -> None:
    path = unexplained().write(tmp_path / "t.json")
    answer = trace.whatif(path, host=2.0)
    assert answer.step_s is None
    assert answer.opaque_share == pytest.approx(0.4, abs=0.05)
    assert "explains 40 % of the critical path (at most 10 % may be)" in str(answer.refused)
    assert answer.opaque_share == trace.replay(path).opaque_share == trace.show(path).opaque_share
    for said in (trace.show(path).missing, trace.replay(path).notes, trace.diff(path, path).notes):
        assert any("what-if questions are refused" in text for text in said)


def test_a_forecast_is_compared_in_the_precision_of_the_trace(tmp_path: Path) -> None:
    made = Made()
    made.range("ProfilerStep#0", 0, 200)
    made.op("aten::mm", 0, 10, Input__Dims=[[64, 64], [64, 64]], Input__type=["float", "float"])
    made.kernel("ampere_sgemm", (2, 6), (8, 188))
    path = made.write(tmp_path / "t.json")
    how: dict[str, Any] = {"forecast": "resnet18", "cluster": "dgx-h100:1x1", "global_batch": 8}
    found = trace.diff(path, **how)
    assert "the forecast computes in fp32, as the trace does" in found.notes
    plain = predict("resnet18", cluster="dgx-h100:1x1", global_batch=8, precision="fp32", use_cache=True)
    assert found.step.before_s == pytest.approx(plain.report.step_s)
    stated = trace.diff(path, precision="amp", **how)
    assert any("the trace computes in fp32, the forecast in amp" in note for note in stated.notes)
    assert stated.step.before_s < found.step.before_s
    silent = trace.diff(host_bound().write(tmp_path / "h.json"), **{**how, "cluster": "dgx-a100:1x1"})
    assert any("does not tell its precision" in note for note in silent.notes)
    assert any("the devices differ: h100-sxm5-80gb in the trace, a100" in note for note in silent.notes)


def test_a_processor_is_compared_with_a_forecast_by_its_operators(tmp_path: Path) -> None:
    path = document_without_device(step_on_processor()).write(tmp_path / "cpu.json")
    found = trace.diff(path, forecast="resnet20-cifar", cluster="cpu-server:1x1", global_batch=8)
    parts = {part.name: part.after_s for part in found.parts}
    assert parts["forward operators"] > 0
    assert sum(parts.values()) == pytest.approx(found.step.after_s)


def test_learned_events_are_a_cost_model(tmp_path: Path) -> None:
    learned = trace.learn(document_without_device(step_on_processor()).write(tmp_path / "cpu.json"))
    spec = [TensorSpec(shape, DType.BF16) for shape in ((8, 32), (32, 16), (8, 16))]
    product = Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=tuple(spec[:2]), outputs=(spec[2],))
    from traincast import load_cluster

    with pytest.raises(RequestError, match="were measured in fp32, but the step computes in bf16"):
        learned.cost_model().estimate([product], load_cluster("cpu-server:1x1"))
    assert not list(tmp_path.glob("events*"))


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("replay", {"output": "x.zzz"}, r"expected a name that ends in .json, .json.gz, or .et"),
        ("whatif", {"output": "x", "host": 2.0}, r"expected a name that ends in .json, .json.gz, or .et"),
        ("whatif", {"host": 0}, "--host 0: expected a factor"),
        ("whatif", {"host": float("nan")}, "--host nan: expected a factor"),
        ("whatif", {"host": True}, "--host True: expected a factor"),
        ("whatif", {"bucket": -1}, "--bucket -1: expected a number of bytes"),
        ("whatif", {"loader_workers": 0}, "--loader-workers 0: expected a whole number"),
        ("replay", {"fit_steps": "all"}, "fit_steps 'all': expected even or odd"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    verb: str, arguments: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = host_bound().write(tmp_path / "t.json")
    with pytest.raises(TraincastError, match=words) as raised:
        getattr(trace, verb)(path, **arguments)
    assert "\n" not in str(raised.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json"]


def test_several_ranks_are_written_to_a_folder_and_chakras_files_overwrite_no_trace(tmp_path: Path) -> None:
    for rank, made in enumerate(pair_of_ranks()):
        made.write(tmp_path / f"rank{rank}.json")
    with pytest.raises(TraincastError, match="there are 2 ranks; give the name of a folder"):
        trace.replay(tmp_path, output=tmp_path / "both.json")
    trace.replay(tmp_path, output=tmp_path / "both")
    assert sorted(p.name for p in (tmp_path / "both").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    trace.replay(tmp_path / "rank0.json", output=tmp_path / "one.et")
    with pytest.raises(TraincastError, match="would be overwritten"):
        trace.replay(tmp_path / "one.0.et", output=tmp_path / "one.et")
