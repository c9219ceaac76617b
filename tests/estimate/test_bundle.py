"""Bundles: the hash covers card and weights, and whatever is amiss in either is named in one line."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from traincast import FileFormatError, RequestError, learned_cost_model
from traincast.cli.main import main
from traincast.estimate.bundle import FORMAT, SHIPPED, check_output, digest_of, load_bundle, renew_bundle, save_bundle

CELL = "product/pytorch/fp32/l4"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def some_cell() -> tuple[dict[str, Any], dict[str, Any]]:
    """Card and arrays of a bundle of one cell."""
    shipped = load_bundle(SHIPPED / "operators")
    card = {**shipped.card, "cells": {CELL: shipped.card["cells"][CELL]}}
    return card, {f"{CELL}:{name}": array for name, array in shipped.arrays(f"{CELL}:").items()}


@pytest.fixture
def operators(tmp_path: Path, some_cell: tuple[dict[str, Any], dict[str, Any]]) -> Path:
    save_bundle(tmp_path / "operators", *some_cell)
    return tmp_path / "operators"


@pytest.fixture
def collectives(tmp_path: Path) -> Path:
    shipped = load_bundle(SHIPPED / "collectives")
    save_bundle(tmp_path / "collectives", shipped.card, shipped.arrays())
    return tmp_path / "collectives"


def changed(path: Path, change: Change, *, stamped: bool) -> None:
    """Change a card on the disk, with a hash that fits it or without."""
    card = json.loads((path / "card.json").read_text(encoding="utf-8"))
    change(card)
    if stamped:
        card["sha256"] = digest_of(card, (path / "weights.safetensors").read_bytes())
    (path / "card.json").write_text(json.dumps(card), encoding="utf-8")


def test_the_layout_of_the_card_does_not_count_but_every_value_does(operators: Path) -> None:
    changed(operators, lambda card: None, stamped=False)
    assert load_bundle(operators).cell(CELL).id == CELL
    changed(operators, lambda card: card["cells"][CELL].update(share=0.5), stamped=False)
    with pytest.raises(FileFormatError, match=r"card\.json or weights\.safetensors was changed or is damaged"):
        load_bundle(operators)
    changed(operators, lambda card: None, stamped=True)
    assert load_bundle(operators).cell(CELL).share == 0.5


def test_weights_of_another_bundle_are_refused(operators: Path, collectives: Path) -> None:
    (operators / "weights.safetensors").write_bytes((collectives / "weights.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="does not match the hash"):
        load_bundle(operators)


def entry(change: Change) -> Change:
    return lambda card: change(card["cells"][CELL])


def of_model(change: Change) -> Change:
    return lambda card: change(card["model"])


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("operators", entry(lambda e: e.update(share=float("nan"))), f"cells.{CELL}.share is nan: expected a number"),
        ("operators", entry(lambda e: e["interval"].update(any=[0.0, float("inf")])), "interval.any[1] is inf"),
        ("operators", entry(lambda e: e["interval"].pop("any")), f"cells.{CELL}.interval.any is missing"),
        (
            "operators",
            entry(lambda e: e["interval"].update(any=[1.0])),
            "interval.any is [1.0]: expected a list of 2 numbers",
        ),
        ("operators", entry(lambda e: e["interval"].update(any=[1.0, -1.0])), "1 to -1: expected the smaller first"),
        ("operators", entry(lambda e: e.update(share="half")), "share is 'half': expected a number"),
        ("operators", entry(lambda e: e.update(share=True)), "share is True: expected a number"),
        ("operators", entry(lambda e: e.update(share=7)), "share is 7: expected a number from 0 to 1"),
        ("operators", entry(lambda e: e.pop("device")), f"cells.{CELL}.device is missing"),
        ("operators", entry(lambda e: e.update(family="frobs")), "family is 'frobs': known are product"),
        ("operators", entry(lambda e: e.update(vocabulary=[])), "vocabulary is []: expected a table of lists of texts"),
        ("operators", entry(lambda e: e["vocabulary"].pop("layout")), "vocabulary.layout is missing or empty"),
        ("operators", entry(lambda e: e.pop("domain")), f"cells.{CELL}.domain is missing"),
        ("operators", entry(lambda e: e.update(domain={"a": [[1.0], [2.0]]})), "domain.a has 1 sizes: product has"),
        (
            "operators",
            entry(lambda e: e.update(base="nowhere")),
            "rests on the cell 'nowhere', which is not in the card",
        ),
        ("operators", lambda card: card.update(cells=[1]), "cells is [1]: expected a table"),
        ("operators", lambda card: card.pop("cells"), "cells is missing"),
        ("operators", lambda card: card.update(devices={"x": {"name": "x"}}), "devices.x.vendor is missing"),
        ("collectives", lambda card: card.pop("model"), "model is missing"),
        ("collectives", of_model(lambda m: m.pop("routes")), "model.routes is missing"),
        (
            "collectives",
            of_model(lambda m: m["routes"][0].update(nic_bandwidth=None)),
            "nic_bandwidth is None",
        ),
        ("collectives", of_model(lambda m: m["conditions"][0].pop("family")), "model.conditions[0].family is missing"),
        ("collectives", of_model(lambda m: m["intervals"].update(all=["a", 2])), "intervals.all[0] is 'a'"),
        ("collectives", of_model(lambda m: m["kinds"].reverse()), "model.kinds is ['p2p'"),
    ],
)
@pytest.mark.parametrize("stamped", [False, True])
def test_what_is_amiss_in_a_card_is_named_in_one_line(
    kind: str, change: Change, said: str, stamped: bool, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    if stamped and (" is nan" in said or " is inf" in said):
        return  # no hash is made of what is no number
    changed(path, change, stamped=stamped)
    with pytest.raises(FileFormatError) as raised:
        load_bundle(path)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(path / "card.json"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-2.5E+400"])
def test_a_number_that_is_none_is_named_however_it_is_written(operators: Path, number: str) -> None:
    text = (operators / "card.json").read_text(encoding="utf-8")
    changed_text = re.sub(r'"share": [\d.]+', f'"share": {number}', text)
    assert changed_text != text
    (operators / "card.json").write_text(changed_text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=rf"cells\.{CELL}\.share is (nan|-?inf): expected a number"):
        load_bundle(operators)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "lacks format, kind, sha256"),
        ('{"format": 2, "kind": "operators"}', "lacks sha256"),
        ('{"format": 9, "kind": "operators", "sha256": ""}', "has format 9: this version reads format 2"),
        ('{"format": 2, "kind": [], "sha256": ""}', "is a bundle of []: known are operators, collectives"),
    ],
)
def test_a_file_that_is_no_card_is_one_line(operators: Path, text: str, said: str) -> None:
    (operators / "card.json").write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError) as raised:
        load_bundle(operators)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def restamped(path: Path, weights: bytes) -> None:
    (path / "weights.safetensors").write_bytes(weights)
    changed(path, lambda card: None, stamped=True)


@pytest.mark.parametrize("weights", [b"", b"\xff" * 100, b"\x08" + b"\0" * 7 + b"not json"])
def test_weights_that_are_no_safetensors_are_one_line(operators: Path, weights: bytes) -> None:
    restamped(operators, weights)
    with pytest.raises(FileFormatError, match=r"weights\.safetensors is no safetensors file"):
        load_bundle(operators)


def test_arrays_that_are_missing_or_no_numbers_are_named(operators: Path, collectives: Path) -> None:
    arrays = load_file(operators / "weights.safetensors")
    name = next(n for n, a in arrays.items() if a.dtype.kind == "f")
    save_file({**arrays, name: np.full_like(arrays[name], np.nan)}, operators / "weights.safetensors")
    restamped(operators, (operators / "weights.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="holds numbers that are not finite"):
        load_bundle(operators).cell(CELL)
    save_file({n: a for n, a in arrays.items() if n != name}, operators / "weights.safetensors")
    restamped(operators, (operators / "weights.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match=f"the cell {CELL} is damaged: .* is missing"):
        load_bundle(operators).cell(CELL)
    arrays = load_file(collectives / "weights.safetensors")
    save_file({**arrays, "curve_route": arrays["curve_route"] + 1000}, collectives / "weights.safetensors")
    restamped(collectives, (collectives / "weights.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="curve_route goes beyond 40 of them"):
        learned_cost_model([collectives])


def test_a_bundle_of_the_first_format_is_renewed_with_its_weights_as_they_are(
    operators: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = (operators / "weights.safetensors").read_bytes()
    card = json.loads((operators / "card.json").read_text(encoding="utf-8"))
    old = {**copy.deepcopy(card), "format": 1, "sha256": hashlib.sha256(weights).hexdigest()}
    (operators / "card.json").write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"has format 1.*: run `traincast fit renew .*` once, or fit it again"):
        load_bundle(operators)
    for said in ("renewed", "up to date"):
        with pytest.raises(SystemExit) as stopped:
            main(["fit", "renew", str(operators)])
        assert stopped.value.code == 0
        assert capsys.readouterr().out.startswith(said)
    assert load_bundle(operators).card == card
    assert card["format"] == FORMAT
    assert (operators / "weights.safetensors").read_bytes() == weights
    (operators / "card.json").write_text(json.dumps({**old, "sha256": "0"}), encoding="utf-8")
    with pytest.raises(FileFormatError, match="does not match the hash"):
        renew_bundle(operators)


def test_a_bundle_takes_the_place_of_a_bundle_and_of_nothing_else(operators: Path, tmp_path: Path) -> None:
    check_output(operators)
    check_output(tmp_path / "deep" / "new")
    (operators / "mine.parquet").write_text("rows")
    with pytest.raises(RequestError, match=r"is a bundle that also holds mine\.parquet: move that away first"):
        check_output(operators)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match="exists and is no bundle"):
        check_output(tmp_path / "file")
    with pytest.raises(RequestError, match="is not a folder"):
        check_output(tmp_path / "file" / "b")
