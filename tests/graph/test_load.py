"""From what a user writes for MODEL to a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import GPT, graph_of
from traincast import CaptureError, RequestError, UnknownNameError, save_graph
from traincast.graph import cache, zoo
from traincast.graph.load import load_model

ZOO = Path(zoo.__file__).parent
FACTORIES = """
import torch
from torch import nn

def pair():
    return nn.Linear(8, 4), torch.zeros(2, 8)

def tokens():
    return nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 3)), (torch.zeros(2, 5, dtype=torch.int64),)

class Knows(nn.Linear):
    example_inputs = (torch.zeros(1, 8),)

def knows():
    return Knows(8, 2)

class Asked(nn.Linear):
    def example_inputs(self):
        return torch.zeros(1, 8)

def asked():
    return Asked(8, 2)

def fails():
    raise OSError("disk\\nfull")

def nothing():
    return None

def no_inputs():
    return nn.Linear(2, 2)

def scalar():
    return nn.Linear(2, 2), (torch.zeros(()),)

class Looks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x

def looks():
    return Looks(8, 8), torch.zeros(1, 8)

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Looks(8, 8)) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def deep():
    return Outer(), torch.zeros(1, 8)

def narrow():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(9, 8)), torch.zeros(1, 8)

def of_length(seq=5):
    return nn.Embedding(11, 4), torch.zeros(2, seq, dtype=torch.int64)

number = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_models.py").write_text(FACTORIES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    return "my_models"


SPELLED = {
    "mobilenet_v2": "mobilenet-v2",
    "ResNet-50": "resnet50",
    "EfficientNet B0": "efficientnet-b0",
    "resnext10132x8d": "resnext101-32x8d",
    "regnet_y_1_6gf": "regnety-1.6gf",
    "regnet_y_16gf": "regnety-16gf",
    "GPT3_1_3B": "gpt3-1.3b",
    "GPT3 13B": "gpt3-13b",
    "DeepSeek_V3+mtp=2": "deepseek-v3+mtp=2",
}


@pytest.mark.parametrize("written", SPELLED)
def test_a_name_may_differ_from_the_zoo_in_case_and_marks(written: str) -> None:
    assert zoo.card(written).name == SPELLED[written]


def test_every_name_of_the_zoo_is_known_in_other_spellings() -> None:
    for name in zoo.names():
        spellings = {name.upper(), name.replace("-", "_"), name.replace("-", " "), name.replace(".", "_")}
        assert {zoo.card(written).name for written in spellings} == {name}


@pytest.mark.parametrize("written", ["megatron17b", "resnet5_0", "mobile.net-v2", "resnet-50-", "_resnet50"])
def test_other_points_and_marks_between_digits_are_refused(written: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        zoo.card(written)


def test_a_graph_has_the_name_of_the_zoo_however_it_is_spelled() -> None:
    assert load_model("MobileNet_V2") == load_model("mobilenet-v2")
    assert load_model("MobileNet_V2").name == "mobilenet-v2"


def test_a_family_is_built_by_its_dimensions() -> None:
    graph = graph_of(GPT)
    assert graph.name == GPT
    assert graph.tokens_per_sample == 128
    assert graph.num_parameters == 1000 * 256 + 128 * 256 + 4 * (12 * 256**2 + 13 * 256) + 2 * 256


def test_the_sequence_length_can_be_set() -> None:
    graph = load_model("gpt:layers=3,hidden=64,heads=4,vocab=100", seq=48)
    assert graph.tokens_per_sample == 48
    assert graph.operators[0].outputs[0].shape == (1, 48, 64)


@pytest.mark.parametrize("seq", [0, -1, 10_000_001])
def test_an_impossible_sequence_length_is_refused(seq: int) -> None:
    with pytest.raises(RequestError, match=f"sequence length {seq}: expected a whole number from 1"):
        load_model(GPT, seq=seq)


@pytest.mark.parametrize("name", ["pair", "knows", "asked"])
def test_a_factory_gives_a_module_and_its_inputs(factories: str, name: str) -> None:
    graph = load_model(f"{factories}:{name}")
    outputs = 4 if name == "pair" else 2
    assert graph.num_parameters == 8 * outputs + outputs
    assert graph.operators[0].inputs[0].shape == (1, 8)
    assert graph.tokens_per_sample == 0


def test_whole_numbers_in_a_row_are_tokens(factories: str) -> None:
    graph = load_model(f"{factories}:tokens")
    assert graph.tokens_per_sample == 5
    assert graph.num_parameters == 11 * 4 + 4 * 3 + 3


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("fails", CaptureError, "its factory failed at .*my_models.py:25: OSError: disk full"),
        ("nothing", RequestError, "its factory returned NoneType; expected"),
        ("no_inputs", RequestError, "Linear has no example inputs; give a tensor, a tuple of tensors"),
        ("scalar", RequestError, "tensors whose first dim is the batch"),
        ("number", RequestError, "number is not callable"),
        ("absent", RequestError, "expected package.module:factory that can be imported"),
        ("looks", CaptureError, "failed in Looks itself at .*my_models.py:38: .*no data-dependent shapes"),
        ("deep", CaptureError, "failed in module 'blocks.0.0' \\(Looks\\) at .*my_models.py:38: "),
        ("narrow", CaptureError, "failed in module '1' \\(Linear\\): RuntimeError: "),
    ],
)
def test_a_factory_that_does_not_serve_is_refused_in_one_line(
    factories: str, name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        load_model(f"{factories}:{name}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("resnet51", UnknownNameError, "did you mean resnet50"),
        ("gtp:layers=2", UnknownNameError, "unknown model family 'gtp': did you mean gpt"),
        ("nowhere.at_all:model", RequestError, "expected package.module:factory"),
        ("gpt:layers", RequestError, "is not of the form name=value"),
        ("none.json", RequestError, "cannot read none.json"),
    ],
)
def test_what_is_no_model_is_refused_with_what_is(spec: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        load_model(spec)


def test_a_saved_graph_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    save_graph(graph_of(GPT), path)
    assert load_model(str(path)) == graph_of(GPT)
    assert load_model(str(path), seq=128) == graph_of(GPT)
    with pytest.raises(RequestError, match="was captured with 128 tokens per sample, not 256: capture it again"):
        load_model(str(path), seq=256)


def test_a_hugging_face_configuration_is_a_model_by_file_or_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 32,
    }
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    by_file, by_folder = load_model(str(folder / "config.json"), seq=32), load_model(str(folder), seq=32)
    assert by_file == by_folder
    assert by_file.name == "tiny-llama"
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert by_file.num_parameters == 2 * 100 * 64 + 3 * layer + 64


def test_a_graph_is_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "kept"))
    spec = "vgg:layers=11,resolution=32,classes=10"
    first = load_model(spec, use_cache=True)
    (kept,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr(zoo, "build", lambda *_, **__: pytest.fail("traced again"))
    assert load_model(spec, use_cache=True) == first
    kept.write_text("{damaged", encoding="utf-8")
    assert cache.cached(kept.stem) is None


def test_a_cache_that_cannot_be_written_costs_only_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "file" / "below"))
    assert load_model("vgg:layers=11,resolution=32,classes=10", use_cache=True).num_parameters > 0


def test_nothing_is_written_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "kept"))
    load_model("vgg:layers=11,resolution=32,classes=10")
    assert not (tmp_path / "kept").exists()


def test_what_is_kept_depends_on_all_that_was_asked() -> None:
    keys = {
        cache.cache_key(c) for c in ({"name": "a"}, {"name": "b"}, {"name": "a", "seq": 1}, {"name": "a", "seq": 2})
    }
    assert len(keys) == 4


def test_a_sequence_length_reaches_a_factory_that_takes_it(factories: str) -> None:
    assert load_model(f"{factories}:of_length").tokens_per_sample == 5
    assert load_model(f"{factories}:of_length", seq=9).tokens_per_sample == 9


def test_a_sequence_length_is_refused_where_it_would_change_nothing(factories: str) -> None:
    assert load_model(f"{factories}:tokens", seq=9).tokens_per_sample == 9
    with pytest.raises(RequestError, match=r"neither tokens .* nor features .*; leave the sequence length out"):
        load_model(f"{factories}:knows", seq=9)
    with pytest.raises(RequestError, match="'resnet18' has no sequence: leave the sequence length of 9 out"):
        load_model("resnet18", seq=9)


def test_tracing_says_how_many_modules_are_done() -> None:
    told: list[tuple[int, int]] = []
    load_model(GPT, progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(set(done))
    assert len(done) > 0.7 * totals[0], "modules are told one by one; a mere list of modules does not run"
    assert done[-1] == totals[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", r"importing broken failed at .*broken.py:1: SyntaxError"),
        ("\n1 / 0", r"importing broken failed at .*broken.py:2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(4)", r"importing broken failed at .*broken.py:2: SystemExit: 4"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_by_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(RequestError, match=said):
        load_model("broken:f")


def test_a_well_known_language_model_needs_no_dimensions() -> None:
    graph = load_model("Mamba2 130M", seq=512)
    assert graph.name == "mamba2-130m"
    assert graph.num_parameters / 1e6 == pytest.approx(129, rel=0.005)
    assert zoo.card("bert-base-uncased").name == "bert-base"
    assert zoo.card("Qwen3 14B").parameters == zoo.card("qwen3-14b").parameters
    with pytest.raises(UnknownNameError, match="did you mean qwen3-4b"):
        zoo.card("qwen3-9b4")


def test_a_graph_is_kept_by_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tests.graph.test_onnx_file import exported

    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "cache"))
    path = exported(torch.nn.Linear(8, 4), (torch.zeros(2, 8),), tmp_path / "net.onnx")
    first = load_model(str(path), use_cache=True)
    with monkeypatch.context() as broken:
        broken.setattr("traincast.graph.onnx.load_onnx", None)
        assert load_model(str(path), use_cache=True) == first
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RequestError):
        load_model(str(path), use_cache=True)


def test_the_digest_of_capturing_code_covers_all_that_capture_imports() -> None:
    """A module that is missing there would leave old graphs in use after it changed."""
    import ast
    from importlib import import_module

    files = (path.relative_to(ZOO).with_suffix("") for path in ZOO.rglob("*.py") if path.stem != "__init__")
    found, left = set(), {"capture.capture", *(".".join(("zoo", *file.parts)) for file in files)}
    while left:
        name = left.pop()
        found.add(name)
        tree = ast.parse(Path(str(import_module(f"traincast.graph.{name}").__file__)).read_text())
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        below = {
            module.removeprefix("traincast.graph.") for module in imported if module.startswith("traincast.graph.")
        }
        left |= below - found
    assert {name.partition(".")[0] for name in found} <= {"zoo", *cache.CAPTURING}
