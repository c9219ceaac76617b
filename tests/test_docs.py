"""What the documents say is true: commands parse, files load, outputs are current, and nothing is left out."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click
import pytest
from benchmarks.markers import rewrite
from benchmarks.outputs import FENCE, PROGRESS, difference, with_counts

import traincast
from tests.documents import ANY_FENCE, PAGE_NAMES, ROOT, fences, text_of
from traincast import (
    Calibration,
    JobForecast,
    Metrics,
    Report,
    Runtime,
    Strategy,
    capture,
    load_cluster,
    load_device,
    load_runtime,
    report,
)
from traincast.cli.main import VERBS, app, main
from traincast.cluster import Correction, Stall, write_calibrated
from traincast.cluster.schema import TABLES
from traincast.estimate.learned import learned_cost_model
from traincast.graph import OpKind, zoo
from traincast.graph.huggingface.read import readers
from traincast.graph.vocabulary import PRODUCTS
from traincast.report import Breakdown, PathEntry
from traincast.scheduling import PLACEMENTS, POLICIES
from traincast.schema import keys_of
from traincast.strategy import PRECISIONS, SCHEDULES, Memory, load_precision, parse_strategy, runtime_names
from traincast.strategy.runtime import TABLES as RUNTIME_TABLES
from traincast.validating.metrics import Summary
from traincast.validating.outcome import RowOutcome


def commands(name: str) -> list[list[str]]:
    """Every call of ``traincast`` in the shell fences of a page, as words."""
    lines = [
        line.removeprefix("$ ")
        for body in fences(name, "sh", "console")
        for line in body.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("traincast ")]


def mentions(name: str) -> list[list[str]]:
    """Every ``traincast VERB`` in the running text of a page, as words."""
    return [shlex.split(span) for span in re.findall(r"`(traincast [^`\n…]+)`", ANY_FENCE.sub("", text_of(name)))]


def verbs() -> Iterator[tuple[str, click.Command]]:
    """Every verb, with the verbs below it."""
    context = click.Context(app)
    for name in VERBS:
        command = app.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", command.commands[below]) for below in command.commands)
        else:
            yield name, command


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_command_parses_and_its_names_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written_files(tmp_path))
    for words in commands(name):
        command, rest = resolve(words)
        values = command.make_context(command.name, rest).params
        check_names(str(command.name), values, refused=shlex.join(words) in refusals())
    for words in mentions(name):
        command, rest = resolve(words)
        if rest:
            check_names(str(command.name), command.make_context(command.name, rest).params, refused=False)


def test_commands_that_list_and_show_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(written_files(tmp_path))
    for words in (w for name in PAGE_NAMES for w in (*commands(name), *mentions(name))):
        if words[1] in ("models", "clusters", "devices", "runtimes"):
            with pytest.raises(SystemExit) as done:
                main(words[1:])
            assert done.value.code == 0
            assert capsys.readouterr().out.strip()


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The verb that a command calls, and the words after it."""
    command: click.Command = app
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"{shlex.join(words)}: there is no verb {rest[0]}"
        command, rest = below, rest[1:]
    return command, rest


def check_names(verb: str, values: dict[str, Any], *, refused: bool) -> None:
    """Load what a command names; a command that is shown to be refused may ask for the wrong number of ranks."""
    if "model" in values:
        check_model(values["model"])
    if verb in ("models", "clusters", "devices", "runtimes") and values["name"]:
        load: dict[str, Callable[[str], object]] = {
            "models": zoo.card,
            "clusters": load_cluster,
            "devices": load_device,
            "runtimes": load_runtime,
        }
        load[verb](values["name"])
    if verb not in ("predict", "search"):
        return
    cluster = load_cluster(values["cluster"])
    batch = values["global_batch"]
    if values.get("strategy"):
        strategy = parse_strategy(values["strategy"], global_batch=batch)
        assert refused or strategy.num_ranks == cluster.num_devices, values
    if values["runtime"]:
        load_runtime(values["runtime"])
    if values["precision"]:
        load_precision(values["precision"])
    Strategy(shard_rules=tuple((m, r) for m, _, r in (rule.rpartition("=") for rule in values.get("shard_rules", ()))))


def check_model(spec: str) -> None:
    """A model of the zoo, a family with dimensions that it knows, an importable factory, or a file."""
    if spec.endswith((".json", ".onnx")):
        return
    head, _, tail = spec.partition(":")
    if tail and head not in zoo.FAMILIES:
        found = importlib.util.find_spec(head)  # not imported: it may need an optional package
        assert found is not None and found.origin is not None
        defined = ast.parse(Path(found.origin).read_text(encoding="utf-8")).body
        assert tail in {each.name for each in defined if isinstance(each, ast.FunctionDef | ast.ClassDef)}
        return
    card = zoo.card(spec)
    module, _, function = zoo.FAMILIES[card.family].partition(":")
    builder = getattr(importlib.import_module(module), function)
    inspect.signature(builder).bind(**card.parameters)


def refusals() -> set[str]:
    """Commands whose shown output is the line of an error."""
    shown = [match for name in PAGE_NAMES for match in FENCE.finditer(text_of(name))]
    return {shlex.join(shlex.split(m["command"])) for m in shown if m["output"].startswith("traincast: ")}


def written_files(folder: Path) -> Path:
    """A folder with every file that the documents show or have a command write, and the examples."""
    for name in PAGE_NAMES:
        for body in fences(name, "toml"):
            title = body.splitlines()[0].removeprefix("# ")
            assert re.fullmatch(r"[\w-]+\.toml", title), f"a toml fence in {name} does not start with its file's name"
            (folder / title).write_text(body, encoding="utf-8")
        for words in (w for w in commands(name) if w[1] == "calibrate"):
            path = folder / words[words.index("-o") + 1]
            write_calibrated(path, extends="dgx-h100", calibration=Calibration())
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def test_hardware_files_of_the_documents_load(tmp_path: Path) -> None:
    folder = written_files(tmp_path)
    lab = load_cluster(str(folder / "lab.toml"))
    assert (lab.name, lab.num_nodes, lab.nics_per_node, lab.oversubscription) == ("lab", 16, 4, 2.0)
    assert lab.device == load_device("h100-sxm5-80gb")
    slow = load_cluster(str(folder / "slow-h100.toml") + ":2")
    assert (slow.device.name, slow.num_nodes, slow.device.peak("bf16")) == ("h100-500w", 2, 757e12)
    assert slow.device.peak("fp8") == load_device("h100-sxm5-80gb").peak("fp8")
    new = load_cluster(str(folder / "new-machine.toml"))
    assert (new.name, new.num_devices, new.price_per_node_hour) == ("npu-pod", 32, 16.0)
    assert not new.device.supports("fp16")
    limited = load_cluster(str(folder / "at-500-watts.toml"))
    assert (limited.device.name, limited.device.limit_w, limited.device.tdp_w) == ("h100-sxm5-80gb", 500.0, 700.0)
    shown = len(fences("docs/your-hardware.md", "toml"))
    assert shown == 5


def test_runtime_file_of_the_documents_loads(tmp_path: Path) -> None:
    runtime = load_runtime(str(written_files(tmp_path) / "my-runtime.toml"))
    assert runtime.kernels.fusions == ("norm", "elementwise")
    assert runtime.exchange.overlap_gradients == load_runtime("pytorch").exchange.overlap_gradients


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_python_of_the_documents_compiles_and_imports_what_exists(name: str) -> None:
    for body in fences(name, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("traincast"):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_modules_that_the_documents_name_exist() -> None:
    for name in PAGE_NAMES:
        for dotted in re.findall(r"`(traincast(?:\.\w+)+)`", text_of(name)):
            module, _, attribute = dotted.rpartition(".")
            try:
                importlib.import_module(dotted)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), attribute), f"{name} names {dotted}"


def test_python_of_the_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (body,) = fences("docs/quickstart.md", "python")
    exec(compile(body, "docs/quickstart.md", "exec"), {})
    out = capsys.readouterr().out
    assert len(re.findall(r"^dp=\S+: [\d.]+ s \([\d.]+ to [\d.]+\), MFU \d+%$", out, re.M)) == 3


def test_accuracy_in_the_readme_is_that_of_the_page() -> None:
    shown = text_of("README.md").partition("## How accurate it is")[2].partition("\n## ")[0]
    figures = re.findall(r"[\d,.]+ (?:%|runs)", shown)
    summary = " ".join(text_of("docs/accuracy.md").partition("## How to use")[0].split())
    assert len(figures) >= 9
    assert [figure for figure in figures if figure not in summary] == []


CHEAP = ("predict", "schedule")
"""Verbs whose shown outputs are made here; ``python -m benchmarks.outputs --check`` makes all of them."""


@pytest.mark.parametrize("name", [name for name in PAGE_NAMES if FENCE.search(text_of(name))])
def test_shown_outputs_are_those_of_today(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(ROOT)
    for shown in FENCE.finditer(text_of(name)):
        words = shlex.split(shown["command"])
        if words[1] not in CHEAP:
            continue
        with pytest.raises(SystemExit):
            main(words[1:])
        printed = capsys.readouterr()
        wrong = difference(shown["output"], printed.out + printed.err)
        assert not wrong, f"{shown['command']}: {wrong}; run python -m benchmarks.outputs"


def test_an_output_that_is_not_of_today_is_found() -> None:
    speed = "10.2 s, 1,764 strategies per CPU second, branch-and-bound, local"
    assert not difference(f"step 3 ms\n{speed}\n", f"step 3 ms  \n{speed.replace('10.2', '9.9')}")
    assert difference("step 3 ms", "step 4 ms") == "the document shows 'step 3 ms', the command prints 'step 4 ms'"
    assert difference("one", "one\ntwo") == "the document shows 'nothing', the command prints 'two'"


def test_no_shown_output_has_a_line_of_progress() -> None:
    assert PROGRESS.sub("", "step 3 ms\nparts of the space: 2 of 15 done after 1 s\n") == "step 3 ms\n"
    assert [name for name in PAGE_NAMES if PROGRESS.search(text_of(name))] == []


def test_counts_in_the_documents_are_those_of_the_catalog() -> None:
    shown = {name: text_of(name) for name in PAGE_NAMES if "<!-- count:" in text_of(name)}
    assert len(shown) >= 2
    for name, text in shown.items():
        assert with_counts(text) == text, f"{name}: run python -m benchmarks.outputs"


def test_a_count_that_is_not_of_today_is_rewritten() -> None:
    assert (
        with_counts("a <!-- count:schedules -->0<!-- --> b") == f"a <!-- count:schedules -->{len(SCHEDULES)}<!-- --> b"
    )


def test_every_console_fence_shows_an_output() -> None:
    for name in PAGE_NAMES:
        found = list(FENCE.finditer(text_of(name)))
        assert len(found) == text_of(name).count("```console")
        assert all(match["output"].strip() for match in found), f"{name}: run python -m benchmarks.outputs"


def test_the_first_page_names_every_verb() -> None:
    line = re.search(r"^The verbs: (.*?)\n\n", text_of("docs/index.md"), re.M | re.S)
    assert line is not None
    assert set(re.findall(r"`([a-z]+)`", line[1])) == set(VERBS)


def options_of(verb: str) -> set[str]:
    return {option for parameter in dict(verbs())[verb].params for option in parameter.opts}


def learned_kinds(model: str, precision: str, cluster: str) -> set[OpKind]:
    """Return the kinds of operators of a model that the shipped bundles estimate on a cluster."""
    operators = [load_precision(precision).apply(op) for op in capture(model, use_cache=True).operators]
    known = learned_cost_model().knows(operators, load_cluster(cluster))
    return {op.kind for op, learned in zip(operators, known, strict=True) if learned}


def convolutions_are_analytical() -> bool:
    half = learned_kinds("resnet50", "amp", "dgx-1-v100:1") | learned_kinds("resnet50", "amp", "dgx-h100:1")
    full = learned_kinds("mobilenet-v2", "fp32", "dgx-1-v100:1")
    language = learned_kinds("llama3-8b", "bf16", "dgx-h100:1")
    return OpKind.CONV not in half and OpKind.DEPTHWISE_CONV not in full and language <= PRODUCTS


DENIED: dict[str, Callable[[], bool]] = {
    "Convolutions in half precision, depthwise ones, and most memory-bound": convolutions_are_analytical,
    "It reads configurations and logs of training frameworks only as rows": lambda: (
        not ({"explain", "import"} & {*dict(verbs())} or {"--config", "--log"} & options_of("predict"))
    ),
    "In a forecast of one job, one number stands for the network traffic": lambda: (
        "--busy-network" in options_of("predict")
        and "--share" in options_of("schedule")
        and not {"--share", "--beside"} & options_of("predict")
    ),
    "Failures, and sequence lengths that vary from batch to batch": lambda: (
        not ({"--failures", "--lengths"} & options_of("predict"))
    ),
}
"""How each point of "What it does not do yet" begins, and whether it still holds."""


def test_what_the_first_page_denies_is_not_there() -> None:
    points = text_of("docs/index.md").partition("## What it does not do yet")[2].strip().split("\n- ")
    points = [point.removeprefix("- ") for point in points]
    assert len(points) == len(DENIED), "a point has no test in DENIED, or a test has no point"
    for beginning, holds in DENIED.items():
        assert any(point.startswith(beginning) for point in points), f"no point begins with {beginning!r}"
        assert holds(), f"docs/index.md denies what exists: {beginning} …"


def parts() -> set[str]:
    """Packages and modules directly below ``traincast``, and the rooms of packages as ``package/room``."""
    root = ROOT / "src" / "traincast"
    tops = {path.stem for path in root.glob("*.py")} - {"__init__", "__main__"}
    return tops | {path.parent.name for path in root.glob("*/__init__.py")}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_the_layout_names_every_part_of_the_house(page: str) -> None:
    table = re.sub(r"(\.py|/)`", "`", text_of(page))
    assert {part for part in parts() if f"`{part}`" not in table} == set()


def test_the_answers_to_newcomers_questions_exist() -> None:
    table = text_of("CONTRIBUTING.md").partition("### Where is the rule that")[2].partition("\n[")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "`" in line.split("|")[2]]
    assert len(rows) == 10
    for _, question, answer, _ in rows:
        for name in re.findall(r"`([^`]+)`", answer):
            assert (ROOT / "src" / "traincast" / name).exists(), f"{question.strip()}: there is no {name}"


def test_the_layout_names_every_room() -> None:
    rows = {line.split("|")[1]: line for line in text_of("CONTRIBUTING.md").splitlines() if line.startswith("| `")}
    root = ROOT / "src" / "traincast"
    for room in (path.parent for path in root.glob("*/*/__init__.py")):
        (row,) = (row for names, row in rows.items() if f"`{room.parent.name}`" in names)
        assert f"`{room.name}`" in row, f"{room.relative_to(root)} is missing in the layout of CONTRIBUTING.md"


def test_every_option_is_in_the_reference_and_the_other_way_round() -> None:
    reference = text_of("docs/reference.md")
    known = {"--help", "--version"}
    for verb, command in verbs():
        assert all(word in reference for word in verb.split())
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                known |= {*parameter.opts, *parameter.secondary_opts}
                for option in parameter.opts:
                    assert re.search(rf"`{re.escape(option)}[ `]", reference), f"{verb} {option} is not in reference.md"
    assert set(re.findall(r"--[a-z][a-z-]*[a-z]", reference)) <= known


def names_of(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in fields(cls)}


def test_every_field_and_public_name_is_in_the_reference() -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", ANY_FENCE.sub("", text_of("docs/reference.md"))))))
    fenced = set(re.findall(r"\w+", " ".join(fences("docs/reference.md", "python"))))
    reported = names_of(Report, Memory, JobForecast, PathEntry, Breakdown, RowOutcome, Summary, Strategy, Metrics)
    reported |= {
        "job_s",
        "cost",
        "energy_j",
        "utilization",
        "rank",
        "stage",
        "rows",
        "forecast",
        "oom_f1",
        "memory_mape",
    }
    assert reported <= words
    assert set(traincast.__all__) - {"__version__"} <= words | fenced
    assert "TRAINCAST_CACHE" in words


def test_signatures_in_the_reference_are_the_real_ones() -> None:
    homes = dict.fromkeys(("write_trace", "write_traces", "write_page"), report)
    seen = set()
    for body in fences("docs/reference.md", "python"):
        for node in ast.parse(body).body:
            assert isinstance(node, ast.FunctionDef)
            real = inspect.signature(getattr(homes.get(node.name, traincast), node.name))
            shown = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
            defaults = {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d}
            defaults |= {a.arg: d for a, d in zip(node.args.args[::-1], node.args.defaults[::-1], strict=False)}
            assert shown == list(real.parameters), node.name
            assert {n: ast.literal_eval(d) for n, d in defaults.items()} == {
                n: p.default for n, p in real.parameters.items() if p.default is not p.empty
            }
            seen.add(node.name)
    assert {"predict", "capture", "load_cluster", "write_trace", "write_page"} <= seen


def test_runtime_fields_and_their_defaults_are_as_documented() -> None:
    page = text_of("docs/runtimes.md")
    top, *tables = re.split(r"^`\[(\w+)\]`: ", page.partition("## Fields")[2].partition("\n## ")[0], flags=re.M)
    assert set(_fields_shown(top)) == (names_of(Runtime) - set(RUNTIME_TABLES)) | {"extends"}
    assert tuple(tables[::2]) == tuple(RUNTIME_TABLES)
    for kind, text in ((Runtime, top), *zip(RUNTIME_TABLES.values(), tables[1::2], strict=True)):
        shown = _fields_shown(text)
        assert kind is Runtime or set(shown) == names_of(kind)
        for field in fields(kind):
            if field.default is not MISSING:
                value = tomllib.loads(f"x = {shown[field.name].strip().strip('`')}")["x"]
                assert value == (list(field.default) if isinstance(field.default, tuple) else field.default), field.name
    assert all(f"| `{name}` |" in page for name in runtime_names())


def _fields_shown(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.M))


def test_settings_precisions_families_and_keys_are_all_documented() -> None:
    strategies = text_of("docs/strategies.md")
    for word in (
        (names_of(Strategy) - {"shard_rules"}) | {"vp", "sp", "mbs", "microbatches", "micro_batch"} | set(SCHEDULES)
    ):
        assert f"`{word}`" in strategies, word
    assert set(re.findall(r"^\| `([\w-]+)` \| \w+", strategies.partition("## Precisions")[2], re.M)) == set(PRECISIONS)
    for precision in PRECISIONS.values():
        row = re.search(rf"^\| `{precision.name}` \| (.+) \|$", strategies, re.M)
        assert row
        products, activations, weights, gradients, master = (cell.strip() for cell in row[1].split("|"))
        assert all(dtype.value in products for dtype in (precision.products, precision.linear))
        assert activations == precision.activations.value
        assert weights.split(",")[0] == precision.weights.value
        assert gradients == precision.gradients.value
        assert master == (precision.master.value if precision.master else "–")
    models = text_of("docs/your-models.md")
    assert all(f"`{word}`" in models for word in (*zoo.FAMILIES, *readers()))
    hardware = text_of("docs/your-hardware.md")
    assert all(f"`{word}`" in hardware for name in ("device", "node", "cluster") for word in keys_of(TABLES[name]))
    calibration = hardware.partition("**`[calibration]`**")[2]
    assert all(f"`{word}`" in calibration for word in {*keys_of(TABLES["calibration"]), *names_of(Stall, Correction)})


def test_every_policy_and_placement_is_documented() -> None:
    page = text_of("docs/scheduling.md")
    policies = page.partition("## Policies")[2].partition("## Placement")[0]
    placements = page.partition("## Placement")[2].partition("## What the scheduler knows")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", policies, re.M) == list(POLICIES)
    assert re.findall(r"^\| `([\w-]+)` \|", placements, re.M) == list(PLACEMENTS)


def test_tables_of_operators_are_rewritten_between_their_markers() -> None:
    page = text_of("docs/operators.md")
    fresh = rewrite(rewrite(page, "cells", "| a |"), "speed", "| b |")
    assert "<!-- cells:begin -->\n| a |\n<!-- cells:end -->" in fresh
    assert "<!-- speed:begin -->\n| b |\n<!-- speed:end -->" in fresh
    assert rewrite(fresh, "cells", "| a |") == fresh
    with pytest.raises(ValueError, match="once each"):
        rewrite("no markers", "cells", "| a |")
