"""Parameters of every named model against what its publisher states.

``models.csv`` has the well-known names that have no file in the zoo. "checkpoint" is the number of elements of the
released weights, a tied table counted once. Models of the zoo carry their published figure in their own files.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

import pytest

from traincast.graph import zoo
from traincast.graph.shipped import index

with Path(__file__).with_name("models.csv").open(encoding="utf-8", newline="") as file:
    ROWS: Final = list(csv.DictReader(file))
PUBLISHED: Final = {name: float(row["parameters"]) for row in ROWS for name in row["names"].split()}
SAME: Final = 0.01
EXPLAINED: Final = {
    "opt-350m": "its embedding has 512 dims, projected to 1,024; ours has 1,024 throughout, as all other OPTs",
}
"""Names that differ by more than :data:`SAME`, and why."""
UNPUBLISHED: Final = {
    **dict.fromkeys(("bert-4b", "bert-20b", "bert-100b", "gpt3-5b", "gpt3-20b", "gpt3-40b"), "nominal sizes of NeMo"),
    **dict.fromkeys(("galactica-6.7b", "galactica-30b", "galactica-120b"), "nominal sizes alone"),
    **dict.fromkeys(("aquila-7b", "skywork-13b", "xverse-13b", "xverse-65b"), "nominal sizes alone"),
    "oasst-sft-4-pythia-12b": "that of Pythia with a smaller table of tokens",
}
"""Names without an exact published figure."""
ROUNDED: Final = {"gpt3-1.3b", "gpt3-13b", "gpt3-2.7b", "gpt3-350m", "gpt3-xl", "megatron-1.7b", "megatron-3.6b"} | {
    "conformer-large", "conformer-medium", "densenet40-k12", "electra-base-squad", "imagen-base-2b", "imagen-base-500m",
    "kimi-k2", "lstm-ptb-medium", "resnet110-cifar", "whisper-small",
}  # fmt: skip
"""Models of the zoo whose published figure has one or two digits, and is further away than :data:`SAME` for that."""


def parameters(name: str) -> int:
    """Count the parameters of a model; those of a uniform stack from two and three layers, which is quicker."""
    card = zoo.card(name)
    if card.family in ("llama", "gpt", "bert", "t5", "moe") and not card.parameters.get("first_dense"):
        two, three = (counted(name, layers) for layers in (2, 3))
        return two + (int(card.parameters["layers"]) - 2) * (three - two)
    return counted(name, None)


def counted(name: str, layers: int | None) -> int:
    return sum(parameter.numel() for parameter in zoo.build(name, layers=layers).module.parameters())


def distinct() -> list[str]:
    """One name of each row: its other names must have the same dimensions."""
    return [row["names"].split()[0] for row in ROWS]


@pytest.mark.long(but=30)
@pytest.mark.parametrize("name", distinct())
def test_a_known_model_has_the_published_parameters(name: str) -> None:
    differs = abs(parameters(name) / PUBLISHED[name] - 1) > SAME
    assert differs == (name in EXPLAINED), f"{parameters(name):,} instead of {PUBLISHED[name]:,.0f}"


def test_other_names_of_a_row_have_nearly_the_same_dimensions() -> None:
    """A norm of queries and keys or a few more tokens are below the bound; widths and depths are equal."""
    sizes = ("layers", "hidden", "heads", "ffn", "kv_heads", "experts", "expert_ffn")
    for row in ROWS:
        given = [zoo.card(name).parameters for name in row["names"].split()]
        found = {(*(each.get(size) for size in sizes), bool(each.get("tied"))) for each in given}
        assert len(found) == 1, row["names"]


def test_every_known_name_is_in_the_table_or_says_why_not() -> None:
    own = {name for name in zoo.known_names() if zoo.card(name).name not in zoo.names()}
    spelled = {zoo.card(name).name for name in (*PUBLISHED, *UNPUBLISHED)}
    assert {zoo.card(name).name for name in own} <= spelled


@pytest.mark.parametrize("name", [n for n in zoo.names() if "parameters" in zoo.card(n).published])
def test_a_model_of_the_zoo_has_the_parameters_of_its_file(name: str) -> None:
    card = zoo.card(name)
    found = index().num_parameters(card.family, card.parameters)
    assert found is not None
    differs = abs(found / float(card.published["parameters"]) - 1) > SAME
    assert differs == (name in ROUNDED)
    assert not differs or int(card.published["parameters_digits"]) <= 2
