"""The graphs that ship with the package are what a capture gives, and they are all that a forecast by name needs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.graphs import PLACE, is_current

from tests.conftest import GPT
from traincast import MissingDependencyError, RequestError
from traincast.graph import cache, shipped, zoo
from traincast.graph.capture import capture as capturing
from traincast.graph.load import load_model
from traincast.graph.traced import capture_of_zoo

SAMPLE = zoo.names()[6::26]
REMEDY = r"needs PyTorch, which is not installed: pip install 'traincast\[torch\]'$"


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if PyTorch were not installed, with an empty cache."""
    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "torch", None)


def test_shipped_graphs_were_made_by_the_code_that_captures() -> None:
    assert not shipped.index().is_stale, "the code that captures graphs has changed: run `make graphs`"


def test_every_name_has_a_shipped_graph_and_no_other_file_ships() -> None:
    cards = [zoo.card(name) for name in zoo.names()]
    found = [shipped.index().find(card.family, card.parameters) for card in cards]
    files = {place[0] for place in found if place is not None and place[1] == 0}
    assert None not in found, "the zoo has changed: run `make graphs`"
    assert {path.name for path in PLACE.iterdir()} == {"index.json", *(f"{file}.json.gz" for file in files)}


@pytest.mark.parametrize("name", SAMPLE)
def test_the_index_has_the_parameters_of_the_graph(name: str) -> None:
    card, index = zoo.card(name), shipped.index()
    assert index.num_parameters(card.family, card.parameters) == load_model(name).num_parameters
    assert index.num_parameters(card.family, {**card.parameters, "colour": 3}) is None


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_shipped_graph_is_what_a_capture_gives(name: str) -> None:
    assert is_current(name), "run `make graphs`"


@pytest.mark.usefixtures("without_torch")
def test_every_name_is_answered_without_pytorch() -> None:
    assert [name for name in zoo.names() if load_model(name).name != name] == []


@pytest.mark.usefixtures("without_torch")
def test_a_size_that_ships_is_found_however_it_is_written() -> None:
    named = load_model("gpt2")
    dimensions = ",".join(f"{key}={value}" for key, value in zoo.card("gpt2").parameters.items())
    spelled = load_model(f"gpt:{dimensions}")
    assert spelled == replace(named, name=f"gpt:{dimensions}")
    assert load_model("gpt2", seq=named.tokens_per_sample) == named


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("name", "layers"), [("gpt2", 3), ("llama3-8b", 40), ("t5-small", 9), ("vit-base", 7)])
def test_another_depth_of_a_stack_is_derived_exactly(name: str, layers: int) -> None:
    card = zoo.card(name)
    derived = shipped.shipped_graph(card.family, {**card.parameters, "layers": layers})
    assert derived is not None
    assert replace(derived, name=name) == capture_of_zoo(name, layers)


def test_two_layers_are_traced() -> None:
    card = zoo.card("gpt2")
    assert shipped.shipped_graph(card.family, {**card.parameters, "layers": 2}) is None


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("spec", "seq", "said"),
    [
        (
            "llama3-8b",
            4096,
            "tracing llama3-8b with 4096 tokens per sample, a size that does not ship with Traincast, ",
        ),
        (GPT, None, f"tracing {GPT}, a size that does not ship with Traincast, "),
        ("tests.graph.test_shipped:test_graphs_of_other_code_are_not_read", None, "tracing a model "),
    ],
)
def test_what_does_not_ship_asks_for_pytorch_in_one_line(spec: str, seq: int | None, said: str) -> None:
    with pytest.raises(MissingDependencyError, match=said + REMEDY):
        load_model(spec, seq=seq)


@pytest.mark.usefixtures("without_torch")
def test_a_model_without_a_sequence_refuses_one_also_without_pytorch() -> None:
    with pytest.raises(RequestError, match="'resnet18' has no sequence: leave the sequence length of 9 out"):
        load_model("resnet18", seq=9)


def test_other_words_leave_the_graphs_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "source_digest", lambda: b"a docstring, a comment or a file was moved")
    assert not shipped.index().is_stale
    monkeypatch.setattr(shipped, "code_digest", lambda: b"other code")
    assert shipped.index().is_stale


def test_comments_docstrings_and_places_do_not_change_the_digest_but_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(*sources: bytes) -> bytes:
        monkeypatch.setattr(cache, "_sources", lambda reader: iter(sources))
        return cache.code_digest.__wrapped__()

    plain = digest(b"import math\ndef f(x):\n    return x + 1\ndef g(x):\n    return 2 * x\n")
    assert digest(b"def g(x):\n    'Doubles.'\n    return 2 * x\n", b"def f(x):\n    return x + 1  # more\n") == plain
    assert digest(b"def f(x):\n    return x + 2\ndef g(x):\n    return 2 * x\n") != plain


def test_graphs_of_other_code_are_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINCAST_CACHE", str(tmp_path / "none"))
    expected = load_model("alexnet")
    for digest in ("source_digest", "code_digest"):
        monkeypatch.setattr(shipped, digest, lambda: b"other code")
    traced: list[str] = []

    def noted(*args: object, name: str, **rest: object) -> object:
        traced.append(name)
        return capturing.capture(*args, name=name, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr("traincast.graph.traced.capture", noted)
    assert load_model("alexnet") == expected
    assert traced == ["alexnet"]
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="alexnet, while the shipped graphs are of other code .*" + REMEDY):
        load_model("alexnet")
