"""Conversion of what files say: exact types, ranges, and messages that name the place and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from traincast import FileFormatError, Runtime
from traincast.cluster.schema import TABLES
from traincast.schema import Text, Words, convert, keys_of, read_table, read_toml, record_of, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    width: Annotated[float, Meta(ge=0.5, le=2.0, description="metres")]
    spokes: Annotated[int, Meta(ge=0, le=100)] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart:
    name: Text
    wheel: Wheel
    spare: Wheel | None = None
    colour: Literal["red", "blue", ""] = "red"
    loads: tuple[tuple[Annotated[float, Meta(ge=0.0, le=9.0)], ...], ...] = ()
    pair: tuple[int, int] = (1, 2)
    tags: Words = ()
    weights: Mapping[str, Annotated[float, Meta(ge=0.0, le=9.0)]] | None = None
    brakes: bool = False


def test_a_whole_table_becomes_the_dataclass_with_exact_types() -> None:
    said = {"name": "a", "wheel": {"width": 1}, "loads": [[1, 2.5], []], "pair": [3, 4], "weights": {"x": 2}}
    cart = convert(said, Cart, "my.toml:")
    assert cart == Cart(name="a", wheel=Wheel(width=1.0), loads=((1.0, 2.5), ()), pair=(3, 4), weights={"x": 2.0})
    assert type(cart.wheel.width) is float


BAD: list[tuple[dict[str, Any], str]] = [
    ({"wheel": {"width": 3}}, "my.toml: wheel.width is 3: expected a number from 0.5 to 2 (metres)"),
    ({"wheel": {"width": float("nan")}}, "my.toml: wheel.width is nan: expected a number from 0.5 to 2 (metres)"),
    ({"wheel": {"width": float("inf")}}, "my.toml: wheel.width is inf: expected a number from 0.5 to 2 (metres)"),
    ({"wheel": {"width": True}}, "my.toml: wheel.width is True: expected a number from 0.5 to 2 (metres)"),
    ({"wheel": {"width": 1, "spokes": 2.0}}, "my.toml: wheel.spokes is 2.0: expected a whole number from 0 to 100"),
    ({"wheel": {"width": 1, "spokes": True}}, "my.toml: wheel.spokes is True: expected a whole number from 0 to 100"),
    ({"spare": {"width": 9}}, "my.toml: spare.width is 9: expected a number from 0.5 to 2 (metres)"),
    ({"spare": 3}, "my.toml: spare is 3: expected a table with width, spokes"),
    ({"colour": "green"}, "my.toml: colour is 'green': expected one of red, blue, ''"),
    ({"loads": [[1.0], [2.0, 10.0]]}, "my.toml: loads[1][1] is 10.0: expected a number from 0 to 9"),
    ({"loads": [1.0]}, "my.toml: loads[0] is 1.0: expected a list of numbers from 0 to 9"),
    ({"pair": [1]}, "my.toml: pair is [1]: expected a list of 2 whole numbers"),
    ({"pair": [1, 2.5]}, "my.toml: pair[1] is 2.5: expected a whole number"),
    ({"tags": ["a", " "]}, "my.toml: tags[1] is ' ': expected a text of 1 to 1000 characters"),
    ({"tags": "a"}, "my.toml: tags is 'a': expected a list of texts of 1 to 1000 characters"),
    ({"weights": {"x": 1, "y": -1}}, "my.toml: weights.y is -1: expected a number from 0 to 9"),
    ({"brakes": 1}, "my.toml: brakes is 1: expected true or false"),
    ({"name": "x" * 2000}, f"my.toml: name is '{'x' * 56}…: expected a text of 1 to 1000 characters"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_wrong_value_is_named_with_its_place_and_what_was_expected(change: dict[str, Any], message: str) -> None:
    said = {"name": "a", "wheel": {"width": 1.0}, **change}
    for read in (lambda: convert(said, Cart, "my.toml:"), lambda: read_table(said, table_of(Cart), "my.toml:")):
        with pytest.raises(FileFormatError) as caught:
            read()
        assert str(caught.value) == message


def test_a_missing_field_is_named_with_the_remedy() -> None:
    with pytest.raises(FileFormatError, match=re.escape("my.toml: [cart].wheel.width is missing: add it")):
        convert({"name": "a", "wheel": {}}, Cart, "my.toml: [cart]", remedy="add it")


def test_a_table_has_only_what_was_said() -> None:
    table = table_of(Cart, without=("pair",), extends=Text)
    assert keys_of(table) == (
        "name", "wheel", "spare", "colour", "loads", "tags", "weights", "brakes", "extends",
    )  # fmt: skip
    assert read_table({"wheel": {"spokes": 3}, "extends": "x"}, table, "t") == {"wheel": {"spokes": 3}, "extends": "x"}
    with pytest.raises(FileFormatError, match="t has unknown key 'pair': known are"):
        read_table({"pair": [1, 2]}, table, "t")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"colours": "red"}, "my.toml has unknown key 'colours': did you mean colour"),
        ({"wheel": {"wide": 1}}, "my.toml: wheel has unknown key 'wide': did you mean width"),
        ({"spare": {"wide": 1}}, "my.toml: spare has unknown key 'wide': did you mean width"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known(said: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read_table(said, table_of(Cart), "my.toml:")
    assert str(caught.value) == message


def test_a_record_has_numbers_of_any_size_but_of_the_right_type() -> None:
    assert convert({"width": 99}, record_of(Wheel), "") == {"width": 99.0}
    with pytest.raises(FileFormatError, match=r"^width is 'wide': expected a number$"):
        convert({"width": "wide"}, record_of(Wheel), "")
    with pytest.raises(FileFormatError, match=r"^width is missing$"):
        convert({"spokes": 3}, record_of(Wheel), "")


class Parcel(TypedDict):
    weight: float
    labels: NotRequired[dict[str, list[str]]]
    notes: NotRequired[dict[str, Any]]
    inner: NotRequired[list[tuple[float, Parcel]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": 3}, "labels is 3: expected a table of lists of texts"),
        ({"labels": {"a": ["x"], "b": ["x", 4]}}, "labels.b[1] is 4: expected a text"),
        ({"notes": 3}, "notes is 3: expected a table"),
        ({"inner": [[1.0, {"weight": 2}], [1.0, {"weight": "x"}]]}, "inner[1][1].weight is 'x': expected a number"),
        ({"inner": [[1.0, 2]]}, "inner[0][1] is 2: expected a table with weight, labels, notes, inner"),
        ({"inner": [[1.0, {}]]}, "inner[0][1].weight is missing"),
        ({"inner": [[1.0]]}, "inner[0] is [1.0]: expected a list of 2 items"),
    ],
)
def test_optional_and_nested_keys_are_named_too(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        convert({"weight": 1.0, **change}, Parcel, "")
    assert str(caught.value) == message


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abwidth"), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data(), kind=st.sampled_from([*TABLES.values(), table_of(Runtime), table_of(Cart), Parcel]))
def test_any_value_of_any_key_is_read_or_refused_in_one_line(data: st.DataObject, kind: Any) -> None:
    said = {data.draw(st.sampled_from(keys_of(kind))): data.draw(_VALUES), **({"weight": 1} if kind is Parcel else {})}
    try:
        read_table(said, kind, "my.toml:")
    except FileFormatError as error:
        assert str(error).startswith("my.toml: ") and "\n" not in str(error)


def test_a_file_that_is_no_toml_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = 1\n[b]\nc = 2\n", encoding="utf-8")
    assert read_toml(path, "cart file") == {"a": 1, "b": {"c": 2}}
    path.write_text("a = \n", encoding="utf-8")
    for bad, message in (
        (path, "is not valid TOML"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "b", "does not"),
    ):
        with pytest.raises(FileFormatError, match=f"^cart file .* {message}"):
            read_toml(bad, "cart file")
