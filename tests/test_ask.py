"""An ask is plain data: JSON and back, one clear line for what it cannot be, and the signature of the verbs."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from msgspec import Meta

from traincast import Ask, Conditions, JobSettings, TraincastError, load_cluster, predict, search
from traincast.ask import Files, JsonRecord, Option, Training, declared, json_schema
from traincast.calibrating.ask import CalibrateAsk
from traincast.cli.derive import asks, words_of
from traincast.cli.resources.ask import MonitorAsk, ResourceCompareAsk
from traincast.fitting.ask import CollectivesFitAsk, FitAsk
from traincast.fitting.inspector.ask import ResourceFitAsk, SimulateAsk
from traincast.profiling.collectives.ask import LogImport
from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.machine.ask import MachineAsk
from traincast.profiling.operators.ask import OperatorSet
from traincast.resolve import resolve, stated_strategy
from traincast.resources.ask import WhatIfAsk
from traincast.scheduling.ask import ScheduleAsk
from traincast.searching.ask import SearchAsk
from traincast.testbed.ask import CompareAsk, RunAsk, StudyAsk
from traincast.traces.ask import DiffAsk, LearnAsk, ReplayAsk, ShowAsk, TraceChangesAsk
from traincast.validating.ask import ValidateAsk

FULL = Ask(
    "llama3-8b",
    cluster="dgx-h100:4",
    global_batch=256,
    strategy="dp=8,tp=4",
    seq=4096,
    freeze=["lm_head"],
    quantize=4,
    lora="rank=8,targets=attention",
    optimizer="adamw",
    tokens=10**12,
    shard_rules=(("mlp", "column"),),
    conditions=Conditions(slow=((3, 1.5),), jitter=0.1),
    job=JobSettings(startup_s=0.1),
)
LEAST: dict[str, Any] = {"model": "resnet18", "cluster": "dgx-h100:1", "global_batch": 8}


@pytest.mark.parametrize("ask", [FULL, Ask("resnet18", cluster="dgx-h100", global_batch=8)])
def test_an_ask_is_json_and_back(ask: Ask) -> None:
    assert Ask.from_dict(json.loads(json.dumps(ask.to_dict()))) == ask


def test_only_what_was_stated_is_written() -> None:
    assert Ask.from_dict(LEAST).to_dict() == LEAST


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"models": "x"}, "the ask has unknown key 'models': did you mean model"),
        ({"conditions": {"slw": []}}, "conditions has unknown key 'slw': did you mean slow"),
        ({"cost_model": "fast"}, "the ask has unknown key 'cost_model'"),
        ({"global_batch": 0}, "ask: global_batch is 0: expected a whole number from 1 to 1000000000"),
        ({"seq": "long"}, "ask: seq is 'long': expected a whole number"),
        ({"freeze": 3}, "ask: freeze is 3: expected a list of texts"),
        ({"conditions": {"jitter": 7}}, "jitter is 7: expected a number from 0 to 1"),
    ],
)
def test_a_wrong_object_is_refused_in_one_line(change: dict[str, Any], line: str) -> None:
    with pytest.raises(TraincastError) as refused:
        Ask.from_dict(LEAST | change)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TraincastError, match="cluster is missing"):
        Ask.from_dict({"model": "resnet18", "global_batch": 8})


def test_a_live_object_has_no_json() -> None:
    with pytest.raises(TraincastError, match="cluster is a live Cluster, which JSON cannot hold"):
        Ask("resnet18", cluster=load_cluster("dgx-h100:1"), global_batch=8).to_dict()


def test_a_verb_takes_an_ask_or_its_fields() -> None:
    ask = Ask("resnet18", cluster="dgx-h100:1", global_batch=64, strategy="dp=8", use_cache=True)
    alike = predict("resnet18", cluster="dgx-h100:1", global_batch=64, strategy="dp=8", use_cache=True)
    assert predict(ask).report.to_dict() == alike.report.to_dict()


def test_a_verb_has_the_signature_of_its_ask() -> None:
    parameters = inspect.signature(predict).parameters
    assert list(parameters)[:2] == ["model", "example_inputs"]
    assert set(parameters) == {one.name for one in declared(Ask)}
    assert parameters["cluster"].annotation == "str | Cluster"
    assert all(f"{one.name}: {one.option.help}" in str(predict.__doc__) for one in declared(Ask))
    with pytest.raises(TypeError, match=r"predict\(\) got an unexpected keyword argument 'clster'"):
        predict("resnet18", clster="dgx-h100:1", global_batch=8)  # type: ignore[call-overload]


def test_every_field_explains_itself() -> None:
    assert all(one.option.help for one in declared(Ask))
    schema = json_schema(Ask)["$defs"]["AskTable"]
    assert set(schema["required"]) == set(LEAST)
    assert all("description" in one for one in schema["properties"].values())


def test_resolving_says_what_was_assumed() -> None:
    resolved = resolve(Ask("resnet18", cluster="a100-sxm4-80gb", global_batch=8, use_cache=True))
    assert resolved.choice is not None
    assert resolved.request.strategy == resolved.choice.strategy
    assert any("a100-sxm4-80gb" in said for said in resolved.assumed)


def test_a_stated_strategy_is_known_before_the_model_is_read() -> None:
    ask = Ask("no-such-model", cluster="nowhere", global_batch=64, strategy="dp=4,pp=2,micro_batch=4")
    assert str(stated_strategy(ask)) == "dp=4,pp=2,num_microbatches=4,schedule=1f1b"
    assert stated_strategy(Ask("no-such-model", cluster="nowhere", global_batch=64)).num_ranks == 1


def test_an_ask_of_data_runs_no_code() -> None:
    for change in ({"model": "os:getcwd"}, {"strategy": "dp=8,schedule=os:getcwd"}):
        with pytest.raises(TraincastError, match="Python code"):
            resolve(Ask.from_dict({**LEAST, "use_cache": True, **change}), allow_code=False)


def test_a_training_without_a_strategy_leaves_it_open() -> None:
    request = resolve(Training("resnet18", cluster="dgx-h100:1", global_batch=8, use_cache=True)).request
    assert request.strategy.num_ranks == 1


def test_results_are_tables_for_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = search("resnet18", cluster="dgx-h100:1", global_batch=64, top=3, use_cache=True)
    table = answer.to_pandas()
    assert list(table["step_s"]) == [candidate.report.step_s for candidate in answer.candidates]
    spans = predict("resnet18", cluster="dgx-h100:1", global_batch=64, use_cache=True).timeline.to_pandas()
    assert {"task", "row", "stream", "start", "end"} == set(spans.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TraincastError, match=r"to_pandas\(\) needs pandas, .*pip install 'traincast\[pandas\]'"):
        answer.to_pandas()


def test_a_flag_is_added_by_declaring_one_field() -> None:
    """A field of an ask is at once an option, an argument of Python, a key of JSON and a line of the documents."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(Ask):
        colour: Annotated[str, Option("The colour of the cluster.", "NAME")] = "grey"

    asked: list[More] = []

    @click.command
    @asks(More)
    def command(ask: More) -> None:
        asked.append(ask)

    words = ["resnet18", "--cluster", "dgx-h100:1", "--global-batch", "8", "--colour", "red"]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    assert asked == [More("resnet18", cluster="dgx-h100:1", global_batch=8, colour="red", use_cache=True)]
    assert More.from_dict(asked[0].to_dict()) == asked[0]
    assert words_of(asked[0])[-2:] == ["--colour", "red"]
    assert "The colour of the cluster." in CliRunner().invoke(command, ["--help"]).output


RECORDS = [
    CalibrateAsk, CollectivesFitAsk, CompareAsk, DiffAsk, EventsAsk, FitAsk, LearnAsk, LogImport, MachineAsk,
    MonitorAsk, OperatorSet, ReplayAsk, ResourceCompareAsk, ResourceFitAsk, RunAsk, ScheduleAsk, SearchAsk, ShowAsk,
    SimulateAsk, StudyAsk, TraceChangesAsk, ValidateAsk, WhatIfAsk,
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS)
def test_what_a_verb_is_asked_explains_itself_and_has_a_schema(record: type) -> None:
    assert all(one.option.help for one in declared(record))
    schema = json_schema(record)["$defs"][f"{record.__name__}Table"]
    assert set(schema["properties"]) == {one.name for one in declared(record) if not one.live}


@dataclass(frozen=True, slots=True)
class Odd(JsonRecord):
    """Every kind of field that the command line has."""

    words: Annotated[Files, Option("Files.", "FILE…")]
    output: Annotated[str, Option("The file to write.", "PATH", short="-o")]
    _: KW_ONLY
    rates: Annotated[Mapping[int, str] | None, Option("Rates.", "N=RATE", read=lambda text: text.split("="))] = None
    where: Annotated[dict[str, str] | None, Option("Filter.", "A=B", joined=",", again="", read=json.loads)] = None
    adapt: Annotated[bool | None, Option("Yes, no, or not said.")] = None
    quiet: Annotated[bool, Option("Not loud.", flag="--loud", turns_off=True)] = True
    parity: Annotated[Literal["even", "odd"], Option("Which.", "even|odd")] = "even"
    members: Annotated[int, Meta(ge=1, le=20), Option("How many.", "N")] = 3
    hidden: Annotated[int, Option("Not on every verb.", "N")] = 7


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a b -o c", Odd(("a", "b"), "c")),
        (
            "a -o c --rates 1=x --rates 2=y --adapt --loud --parity odd --members 20",
            Odd(("a",), "c", rates={"1": "x", "2": "y"}, adapt=True, quiet=False, parity="odd", members=20),  # type: ignore[dict-item]
        ),
        ('a -o c --no-adapt --where {"x":1 --where "y":2}', Odd(("a",), "c", adapt=False, where={"x": 1, "y": 2})),  # type: ignore[dict-item]
    ],
)
def test_every_kind_of_field_is_read(words: str, expected: Odd) -> None:
    asked: list[Odd] = []

    @click.command
    @asks(Odd, without=["hidden"])
    def command(ask: Odd) -> None:
        asked.append(ask)

    CliRunner().invoke(command, words.split(), catch_exceptions=False)
    assert asked == [expected]
    for wrong, said in {
        "a -o c --members 21": "21 is not in the range 1<=x<=20",
        "a -o c --parity none": "'none' is not one of 'even', 'odd'",
        "a -o c --hidden 3": "No such option",
        "-o c": "Missing argument 'FILE…'",
        "a": "Missing option '-o' / '--output'",
    }.items():
        assert said in CliRunner().invoke(command, wrong.split()).output


def test_the_command_line_fills_what_python_says() -> None:
    asked: list[Ask] = []

    @click.command
    @asks(Ask)
    def command(ask: Ask) -> None:
        asked.append(ask)

    text = "gpt2 --cluster dgx-h100:1 --global-batch 4k --strategy dp=8 --slow 3=1.5 --jitter 0.1 --seed 2 --no-cache"
    text += " --freeze a --freeze b --shard-rule mlp=row --tokens 1e12 --optimizer sgd"
    CliRunner().invoke(command, text.split(), catch_exceptions=False)
    CliRunner().invoke(command, "gpt2 --cluster a --global-batch 8 --seed 3".split(), catch_exceptions=False)
    assert asked == [
        Ask(
            "gpt2",
            cluster="dgx-h100:1",
            global_batch=4000,
            strategy="dp=8",
            conditions=Conditions(slow=((3, 1.5),), jitter=0.1, seed=2),
            freeze=("a", "b"),
            shard_rules=(("mlp", "row"),),
            tokens=10**12,
            optimizer="sgd",
        ),
        Ask("gpt2", cluster="a", global_batch=8, use_cache=True),
    ]
