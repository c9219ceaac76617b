"""Bad input gets exit code 2 and one clear line, and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from traincast.cli.main import main
from traincast.strategy.schedules.skeleton import skeleton

GPT = "gpt:layers=2,hidden=64,heads=4,vocab=100,seq=32"
BASE = ["predict", GPT, "--cluster", "dgx-h100", "--global-batch", "8"]


def _with(*extra: str) -> list[str]:
    return [*BASE, *extra]


def _on(cluster: str) -> list[str]:
    return ["predict", GPT, "--cluster", cluster, "--global-batch", "8"]


def _model(spec: str) -> list[str]:
    return ["predict", spec, "--cluster", "dgx-h100", "--global-batch", "8"]


def _batch(text: str) -> list[str]:
    return ["predict", GPT, "--cluster", "dgx-h100", "--global-batch", text]


REQUESTS: dict[str, tuple[list[str], str]] = {
    # what is asked for: arguments, a word the message must have
    "no verb of that name": (["prdict"], "prdict"),
    "no model": (["predict"], "MODEL"),
    "no cluster": (["predict", GPT, "--global-batch", "8"], "--cluster"),
    "no batch": (["predict", GPT, "--cluster", "dgx-h100"], "--global-batch"),
    "an option that does not exist": (_with("--colour", "red"), "--colour"),
    "an unknown model": (_model("lama3-8b"), "llama3-8b"),
    "an unknown family": (_model("gtp:layers=2"), "gtp"),
    "a family without its dimensions": (_model("gpt:layers=2"), "hidden"),
    "a dimension that is no dimension": (_model("gpt:layers=2,hidden=64,heads=4,colour=3"), "colour"),
    "a dimension without a value": (_model("gpt:layers"), "layers"),
    "heads that do not divide": (_model("gpt:layers=2,hidden=64,heads=5"), "heads"),
    "zero layers": (_model("gpt:layers=0,hidden=64,heads=4"), "layers"),
    "a negative width": (_model("gpt:layers=2,hidden=-64,heads=4"), "hidden"),
    "a huge width": (_model("gpt:layers=2,hidden=99999999999999,heads=1"), "hidden"),
    "a width that is a word": (_model("gpt:layers=2,hidden=wide,heads=4"), "hidden"),
    "a module that is not there": (_model("no.such.module:factory"), "no.such"),
    "a factory that is not there": (_model("json:factory"), "factory"),
    "a factory that is no function": (_model("string:digits"), "digits"),
    "a factory that returns nonsense": (_model("os:getcwd"), "getcwd"),
    "an unknown cluster": (_on("dgx-h10"), "dgx-h100"),
    "zero nodes": (_on("dgx-h100:0"), "0"),
    "negative nodes": (_on("dgx-h100:-4"), "-4"),
    "nodes that are a word": (_on("dgx-h100:many"), "many"),
    "too many nodes": (_on("dgx-h100:99999999999"), "99999999999"),
    "a cluster file that is not there": (_on("missing.toml"), "missing.toml"),
    "a batch of zero": (_batch("0"), "0"),
    "a batch that is not a number": (_batch("nan"), "nan"),
    "an infinite batch": (_batch("inf"), "inf"),
    "a negative batch": (_batch("-8"), "-8"),
    "a batch with a fraction": (_batch("8.5"), "8.5"),
    "an absurd batch": (_batch("1e30"), "1e30"),
    "a batch beyond reason": (_batch("1e12"), "1000000000000"),
    "a wrong product of degrees": (_with("--strategy", "dp=4,tp=4"), "16"),
    "a degree of zero": (_with("--strategy", "dp=0,tp=8"), "dp=0"),
    "a degree that is a word": (_with("--strategy", "dp=all"), "all"),
    "a degree given twice": (_with("--strategy", "dp=8,dp=8"), "twice"),
    "a setting that does not exist": (_with("--strategy", "dp=8,colour=3"), "colour"),
    "tensor groups that do not divide the heads": (_with("--strategy", "tp=8"), "heads"),
    "more stages than layers": (
        [*_model("gpt:layers=4,hidden=64,heads=4,vocab=100,seq=32"), "--strategy", "pp=8"],
        "at most 4",
    ),
    "an unknown schedule": (_with("--strategy", "pp=2,dp=4,schedule=2f2b"), "2f2b"),
    "an unknown kind of recomputation": (_with("--strategy", "dp=8,recompute=some"), "some"),
    "a ZeRO stage that does not exist": (_with("--strategy", "dp=8,zero=4"), "zero=4"),
    "shards that do not divide the replicas": (_with("--strategy", "dp=8,zero=3,shard=3"), "shard=3"),
    "shards of nothing": (_with("--strategy", "dp=8,shard=4"), "zero"),
    "experts of a model that has none": (_with("--strategy", "dp=8,ep=2"), "no experts"),
    "layers that do not add up": (_with("--strategy", "dp=4,pp=2,layers=1/2,microbatches=2"), "add up"),
    "a layer that is no number": (_with("--strategy", "dp=4,pp=2,layers=1/x"), "layers"),
    "recomputation of every second layer of none": (_with("--strategy", "dp=8,recompute_every=2"), "recompute=full"),
    "compression to nothing": (_with("--strategy", "dp=8,compression=0"), "compression"),
    "a compression that is no number": (_with("--strategy", "dp=8,compression=nan"), "compression"),
    "an unknown thing to offload": (_with("--strategy", "dp=8,offload=weights"), "offload"),
    "asynchronous without servers": (_with("--strategy", "dp=8,async"), "servers"),
    "servers with a pipeline": (_with("--strategy", "dp=4,pp=2,servers=1"), "servers"),
    "dualpipe with too few microbatches": (
        _with("--strategy", "dp=4,pp=2,schedule=dualpipe,microbatches=2"),
        "dualpipe",
    ),
    "a schedule that cannot be imported": (_with("--strategy", "dp=4,pp=2,schedule=nowhere:order"), "nowhere"),
    "a slow rank that is none": (_with("--slow", "three=2"), "RANK=FACTOR"),
    "a slow rank beyond the last": (_with("--slow", "99=2"), "99"),
    "a rank that is faster": (_with("--slow", "1=0.5"), "from 1"),
    "a rank that takes no time": (_with("--slow", "1=0"), "factor of 0"),
    "a rank that goes backwards": (_with("--slow", "1=-2"), "factor of -2"),
    "a rank that is slow by no number": (_with("--slow", "1=nan"), "factor of nan"),
    "a rank that never ends": (_with("--slow", "1=inf"), "from 1 to 1000"),
    "a rank that is absurdly slow": (_with("--slow", "1=1e9"), "from 1 to 1000"),
    "a slow rank before the first": (_with("--slow", "-1=2"), "slow ranks"),
    "a rank that is slow twice": (_with("--slow", "1=2", "--slow", "1=3"), "slow ranks"),
    "a slow worker beyond the last": (_with("--strategy", "dp=8,servers=2", "--slow", "8=2"), "0 to 7"),
    "absurd jitter": (_with("--jitter", "5"), "from 0 to 1"),
    "infinite jitter": (_with("--jitter", "inf"), "from 0 to 1"),
    "a negative seed": (_with("--jitter", "0.1", "--seed", "-1"), "--seed is '-1'"),
    "a network that others give to": (_with("--busy-network", "-0.1"), "network"),
    "a network that others take more than whole": (_with("--busy-network", "1.5"), "network"),
    "a network taken by no number": (_with("--busy-network", "nan"), "network"),
    "more nodes of servers than servers": (
        _with("--cluster", "dgx-h100:3", "--strategy", "dp=8,servers=1,server_nodes=2"),
        "servers=2",
    ),
    "nodes of servers without servers": (_with("--strategy", "dp=8,server_nodes=1"), "servers=1"),
    "no node left for workers": (_with("--strategy", "dp=8,servers=1,server_nodes=1"), "workers need at least one"),
    "workers on the nodes of servers": (
        _with("--cluster", "dgx-h100:2", "--strategy", "dp=16,servers=1,server_nodes=1"),
        "set dp=8",
    ),
    "nodes without accelerators for ranks": (_with("--cluster", "dgx-h100:1+cpu-server:1"), "accelerators"),
    "negative jitter": (_with("--jitter", "-1"), "jitter"),
    "jitter that is no number": (_with("--jitter", "nan"), "jitter"),
    "a network that others take whole": (_with("--busy-network", "1"), "network"),
    "ranks for some of unlike nodes": (
        _with("--cluster", "dgx-a100:1+dgx-h100:1x4", "--strategy", "dp=8"),
        "1 × 8 + 1 × 4 = 12 devices",
    ),
    "shares for some of the replicas": (_with("--strategy", "dp=8,shares=2:1"), "8 whole numbers from 1"),
    "shares that are no numbers": (_with("--strategy", "dp=8,shares=a:b"), "whole number"),
    "a share of nothing": (_with("--strategy", "dp=8,shares=1:1:1:1:1:1:1:0"), "8 whole numbers from 1"),
    "shares of broken samples": (_with("--strategy", "dp=8,shares=2:1:1:1:1:1:1:1"), "nearest batches that can"),
    "shares with experts": (_with("--strategy", "dp=8,ep=8,shares=2:1:1:1:1:1:1:1"), "leave out one of them"),
    "servers on a node that does not exist": (_with("--strategy", "dp=8,servers=1,placement=3"), "nodes 0 to 0"),
    "servers placed twice": (_with("--strategy", "dp=8,servers=2,placement=0/0"), "different nodes from 0"),
    "more nodes than servers": (_with("--strategy", "dp=8,servers=1,placement=0/1"), "list from 1 to 1 nodes"),
    "a place of no servers": (_with("--strategy", "dp=8,placement=0"), "set servers"),
    "sequence parallelism without tensor groups": (_with("--strategy", "dp=8,sp"), "tp"),
    "virtual stages without a pipeline": (_with("--strategy", "dp=8,vp=2"), "pp"),
    "a batch that the replicas do not divide": (
        ["predict", GPT, "--cluster", "dgx-h100", "--strategy", "dp=8", "--global-batch", "12"],
        "12",
    ),
    "a micro batch that does not divide": (_with("--strategy", "dp=4,tp=2,micro_batch=3"), "micro_batch"),
    "two ways to say the micro batch": (_with("--strategy", "dp=8,micro_batch=1,num_microbatches=1"), "one of them"),
    "microbatches beyond counting": (
        ["predict", GPT, "--cluster", "dgx-h100", "--strategy", "dp=8,micro_batch=1", "--global-batch", "8000000"],
        "passes",
    ),
    "experts, which are not modelled": (_with("--strategy", "dp=8,ep=8"), "ep=8"),
    "a flag that is neither true nor false": (_with("--strategy", "dp=4,tp=2,sp=maybe"), "maybe"),
    "an unknown precision": (_with("--precision", "fp12"), "fp12"),
    "an unknown runtime": (_with("--runtime", "megaton"), "megatron"),
    "a runtime file that is not there": (_with("--runtime", "missing.toml"), "missing.toml"),
    "a sequence of zero": (_with("--seq", "0"), "0"),
    "an absurd sequence": (_with("--seq", "1e17"), "sequence"),
    "a job told in two ways": (_with("--tokens", "1e9", "--steps", "10"), "tokens and steps"),
    "tokens for a model without any": (
        ["predict", "resnet18", "--cluster", "dgx-h100", "--global-batch", "8", "--tokens", "1e9"],
        "tokens",
    ),
    "a job of no steps": (_with("--steps", "0"), "0"),
    "tensor groups for a convolutional net": (
        ["predict", "resnet18", "--cluster", "dgx-h100", "--global-batch", "8", "--strategy", "dp=4,tp=2"],
        "--shard-rule",
    ),
    "a shard rule without a role": (_with("--shard-rule", "layers"), "layers"),
    "a shard rule with an unknown role": (_with("--strategy", "dp=4,tp=2", "--shard-rule", "*=diagonal"), "diagonal"),
    "a shard rule that matches nothing": (
        _with("--strategy", "dp=4,tp=2", "--shard-rule", "nowhere.*=column"),
        "nowhere",
    ),
    "a trace in a folder that is not there": (_with("--trace", "/no/such/folder/t.json"), "folder"),
    "a page in a folder that is not there": (_with("--html", "/no/such/folder/p.html"), "folder"),
    "an unknown device": (["devices", "h1000"], "h100"),
    "an unknown runtime to show": (["runtimes", "tensorflo"], "tensorflow"),
    "an unknown model to show": (["models", "resnet51"], "resnet50"),
    "a table that is not there": (["validate", "steps", "missing.parquet"], "missing.parquet"),
    "a table of another kind": (["validate", "steps", "missing.txt"], "missing.txt"),
    "a verb of validate that does not exist": (["validate", "everything", "x.csv"], "everything"),
    "a graph into a folder that is not there": (["capture", GPT, "-o", "/no/such/folder/g.json"], "folder"),
}


def _one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("traincast: ")
    assert len(lines[0]) < 500
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("what", REQUESTS)
def test_a_wrong_request_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, word = REQUESTS[what]
    assert word in _one_line(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


def _json_graph() -> dict[str, object]:
    tensor = [[4, 4], "fp32", 0]
    operator = ["mm", "gemm", "forward", "", [0, 0], [0], [], [], {}]
    return {
        "format": "traincast-graph",
        "version": 1,
        "name": "tiny",
        "tokens_per_sample": 0,
        "attributes": {},
        "operators": [operator],
        "edges": [],
        "forward_of": [-1],
        "blocks": [["", 1, [0], [], [], []]],
        "tensors": [tensor],
    }


def _changed(**changes: object) -> Callable[[], str]:
    return lambda: json.dumps({**_json_graph(), **changes})


FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "a file that is not JSON": ("model.json", lambda: "{nonsense"),
    "an empty file": ("model.json", lambda: ""),
    "JSON that is no model": ("model.json", lambda: "[1, 2, 3]"),
    "JSON nested a hundred thousand deep": ("model.json", lambda: "[" * 100_000),
    "an unknown model type": ("config.json", lambda: '{"model_type": "perceptron"}'),
    "a configuration without dimensions": ("config.json", lambda: '{"model_type": "llama"}'),
    "a configuration with NaN": (
        "config.json",
        lambda: '{"model_type": "llama", "hidden_size": NaN, "num_hidden_layers": 2, "num_attention_heads": 4}',
    ),
    "a graph of another version": ("graph.json", _changed(version=99)),
    "a graph without operators": ("graph.json", _changed(operators=[], forward_of=[], blocks=[])),
    "a graph with an operator of an unknown kind": (
        "graph.json",
        _changed(operators=[["mm", "magic", "forward", "", [0, 0], [0], [], [], {}]]),
    ),
    "a graph whose edge points nowhere": ("graph.json", _changed(edges=[[0, 7]])),
    "a graph with a negative size": ("graph.json", _changed(tensors=[[[-4, 4], "fp32", 0]])),
    "a graph with a huge size": ("graph.json", _changed(tensors=[[[10**30, 4], "fp32", 0]])),
    "a graph with a text for a number": ("graph.json", _changed(tokens_per_sample="many")),
    "a graph cut short": ("graph.json", lambda: json.dumps(_json_graph())[:80]),
    "a cluster that is not TOML": ("my.toml", lambda: "device = = 3"),
    "a cluster with an unknown key": ("my.toml", lambda: 'extends = "dgx-h100"\n[node]\ncolour = 3\n'),
    "a cluster with a negative bandwidth": (
        "my.toml",
        lambda: 'extends = "dgx-h100"\n[node]\nintra_node = { name = "x", bandwidth = -1.0, latency_s = 1e-6 }\n',
    ),
    "a cluster with NaN": ("my.toml", lambda: 'extends = "dgx-h100"\n[node]\nlaunch_s = nan\n'),
    "a cluster that extends nothing known": ("my.toml", lambda: 'extends = "dgx-h9000"\n'),
    "a runtime that is not TOML": ("runtime.toml", lambda: "[["),
    "a runtime with an unknown key": ("runtime.toml", lambda: "colour = 3\n"),
    "a runtime with a wrong type": ("runtime.toml", lambda: '[exchange]\nbucket_bytes = "large"\n'),
    "a runtime with NaN": ("runtime.toml", lambda: "[exchange]\nbucket_bytes = nan\n"),
    "a runtime with an unknown fusion": ("runtime.toml", lambda: '[kernels]\nfusions = ["everything"]\n'),
    "a table without its columns": ("steps.csv", lambda: "a,b\n1,2\n"),
    "a table that is no Parquet": ("steps.parquet", lambda: "PAR1 nonsense"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_gets_one_line_and_exit_code_two(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content = FILES[what]
    path = tmp_path / name
    path.write_text(content())
    if name == "my.toml":
        arguments = _on(str(path))
    elif name == "runtime.toml":
        arguments = _with("--runtime", str(path))
    elif name.startswith("steps"):
        arguments = ["validate", "steps", str(path)]
    else:
        arguments = _model(str(path))
    _one_line(capsys, arguments)
    assert list(tmp_path.iterdir()) == [path]


SCHEDULES = """
from traincast.strategy.schedules import Pass, PipelineSchedule, Slot

def raises(p, m, v):
    return [][m]

def leaves(p, m, v):
    raise SystemExit(3)

def two_arguments(p, m):
    return []

def nothing(p, m, v):
    return None

def text(p, m, v):
    return "FB" * m

def flat(p, m, v):
    return [Slot(Pass.FORWARD, 0)] * p

def words(p, m, v):
    return [[("F", 0, 0)]] * p

def no_such_pass(p, m, v):
    return [[Slot(9, 0)]] * p

def far(p, m, v):
    return [[Slot(Pass.FORWARD, 10**30)]] * p

def few(p, m, v):
    return [[Slot(Pass.FORWARD, 0)]]

def empty(p, m, v):
    return [[]] * p

def backward_first(p, m, v):
    return [[Slot(what, n) for what in (Pass.BACKWARD, Pass.FORWARD) for n in range(m)] for _ in range(p)]

astray = PipelineSchedule(order=nothing, routes=lambda p, v: [[(99, 99)]])
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "failed at orders.py:5 with pp=2, num_microbatches=2, virtual_stages=1: IndexError: list index"),
        ("leaves", "failed at orders.py:8 with pp=2, num_microbatches=2, virtual_stages=1: SystemExit: 3"),
        ("two_arguments", "TypeError: two_arguments() takes 2 positional arguments but 3 were given"),
        ("nothing", "(orders.py:13) returned None; expected for each stage a list of Slot(pass, microbatch, chunk)"),
        ("text", "(orders.py:16) returned 'FBFB'; expected for each stage"),
        ("flat", "(orders.py:19) returned <Pass.FORWARD: 0> in entry 0; expected for each stage"),
        ("words", "(orders.py:22) returned ('F', 0, 0) in entry 0; expected for each stage"),
        ("no_such_pass", "in entry 0; expected numbers from 0 on and below (4, 2, 1)"),
        ("far", "in entry 0; expected numbers from 0 on and below (4, 2, 1)"),
        ("few", "(orders.py:31): the pipeline schedule orders 1 stages; expected pp=2"),
        ("empty", "(orders.py:34): the pipeline schedule runs nothing of microbatch 0"),
        ("backward_first", "(orders.py:37): the pipeline schedule deadlocks"),
        ("astray", "returned (99, 99) in entry 0; expected numbers from 0 on and below (2, 1)"),
    ],
)
def test_an_own_schedule_that_fails_is_told_by_its_function_and_line(
    name: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    (tmp_path / "orders.py").write_text(SCHEDULES)
    skeleton.cache_clear()
    line = _one_line(capsys, _with("--strategy", f"dp=4,pp=2,num_microbatches=2,schedule=orders:{name}"))
    assert line.startswith(f"traincast: schedule 'orders:{name}'")
    assert said in line
