"""Cells: what lies beyond the data, what is not known, and files."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.cluster import find_device
from traincast.estimate.operators.cells import (
    ANY,
    COLUMNS,
    WIDENING,
    Cell,
    arrays_of,
    card_of,
    cell_from,
    encode,
    one_hot,
    setting_of,
    trees_table,
)
from traincast.estimate.operators.families import FAMILIES, Rates
from traincast.estimate.operators.features import Shapes, features, roofline
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.train import Examples, TrainConfig, train_network

RATES = Rates.of(find_device("A100-SXM4-80GB"), "bf16")
VOCABULARY = {
    "name": ["gemm.fwd", "bmm.fwd"],
    "act": ["none", "relu"],
    "optimizer": ["none"],
    "layout": ["none"],
    "setting": ["serving", "pytorch"],
    "dtype": ["bf16"],
}
LOW, HIGH = [1.0, 16, 16, 16, 2, 2], [64.0, 4096, 4096, 4096, 2, 2]


def shapes(*sizes: list[float], name: str = "gemm.fwd", act: str = "none") -> Shapes:
    return Shapes(
        family="product",
        sizes=np.array(sizes, dtype=np.float64),
        passes=np.ones(len(sizes)),
        details=((name, act, "none", "none"),),
        which=np.zeros(len(sizes), int),
    )


@cache
def cell(share: float = 0.5) -> Cell:
    """Trees and a network that have learned that waves, an activation and a setting cost something."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(LOW), np.log(HIGH), size=(400, 6))).round()
    names, acts = rng.choice(VOCABULARY["name"], 400), rng.choice(VOCABULARY["act"], 400)
    given = Shapes(
        family="product",
        sizes=sizes,
        passes=np.ones(400),
        details=tuple((str(n), str(a), "none", "none") for n, a in zip(names, acts, strict=True)),
        which=np.arange(len(names)),
    )
    codes = encode(given, "serving", "bf16", VOCABULARY)
    codes[:, COLUMNS.index("setting")] = rng.integers(0, 2, 400)
    found = features(given, RATES)
    target = 0.5 - 0.4 * found.tiles[:, 10, 1] + 0.3 * codes[:, 1] + 0.3 * codes[:, 4]
    examples = Examples(
        flat=found.flat, tiles=found.tiles, categories=one_hot(codes, VOCABULARY), target=target.astype(np.float64)
    )
    size = {"hidden": 16, "width": 8, "modes": (2, 5), "frequencies": 2}
    return Cell(
        family="product",
        setting=ANY,
        dtype="bf16",
        device="a100-sxm4-80gb",
        vocabulary=VOCABULARY,
        domain={"gemm.fwd": (LOW, HIGH), "bmm.fwd": (LOW, HIGH)},
        interval={"gemm.fwd": (-0.1, 0.2), ANY: (-0.3, 0.4)},
        share=share,
        trees=grow(trees_table(found, codes), examples.target, BoostingConfig(rounds=30, leaves=15)),
        network=train_network(examples, size=size, config=TrainConfig(epochs=8, batch=64)),
    )


# Beyond the data


@settings(deadline=None)  # the first case fits the cell
@given(
    st.lists(st.floats(1.0, 2.0**14), min_size=4, max_size=4),
    st.integers(0, 3),
    st.floats(1.0, 8.0),
    st.floats(1.0, 100.0),
)
def test_time_never_falls_when_a_size_grows_beyond_the_data(
    sizes: list[float], place: int, beyond: float, factor: float
) -> None:
    at_edge = [HIGH[place] * beyond if i == place else s for i, s in enumerate(sizes)]
    larger = [s * factor if i == place else s for i, s in enumerate(at_edge)]
    found = cell().estimate(shapes([*at_edge, 2, 2], [*larger, 2, 2]), RATES)
    assert found.seconds[1] >= found.seconds[0] * (1 - 1e-12)
    assert found.outside[1] >= found.outside[0]


def test_beyond_the_data_the_efficiency_is_that_of_the_edge() -> None:
    inside, outside = shapes(HIGH), shapes([*(4 * x for x in HIGH[:4]), 2, 2])
    ratio = [cell().estimate(each, RATES).seconds[0] / roofline(each, RATES)[0] for each in (inside, outside)]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 2.0**15), min_size=4, max_size=4))
def test_intervals_contain_the_estimate_and_widen_outside(sizes: list[float]) -> None:
    given_shapes = shapes([*sizes, 2, 2])
    found = cell().estimate(given_shapes, RATES)
    assert 0 < found.low[0] < found.seconds[0] < found.high[0]
    width = np.log(found.high[0] / found.low[0])
    assert width == pytest.approx(0.3 + 2 * WIDENING * found.outside[0])
    within = all(low <= s <= high for s, low, high in zip(sizes, LOW, HIGH, strict=False))
    assert (found.outside[0] == 0) == within


def test_how_far_outside_is_said_in_factors_of_e() -> None:
    found = cell().estimate(shapes([64, np.e * 4096, 16 / np.e**2, 64, 2, 2]), RATES)
    assert found.outside[0] == pytest.approx(2.0)


def test_a_name_without_an_interval_of_its_own_takes_that_of_any() -> None:
    found = cell().estimate(shapes([1, 64, 64, 64, 2, 2], name="bmm.fwd"), RATES)
    assert np.log(found.high / found.low)[0] == pytest.approx(0.7)


# What is known


def test_names_that_were_measured_are_known() -> None:
    assert cell().knows(shapes(LOW)).tolist() == [True]
    assert cell().knows(shapes(LOW, name="conv2d.fwd")).tolist() == [False]


def test_texts_matter_and_unknown_ones_count_as_the_most_frequent() -> None:
    size = [1.0, 512, 512, 512, 2, 2]

    def seconds(act: str = "none", framework: str = "serving") -> float:
        return float(cell().estimate(shapes(size, act=act), RATES, framework=framework).seconds[0])

    assert seconds(act="relu") > 1.1 * seconds()
    assert seconds(framework="pytorch") > 1.1 * seconds()
    assert seconds(act="mish") == seconds()
    assert seconds(framework="unheard of") == seconds()
    codes = encode(shapes(size, name="?", act="?"), "?", "?", VOCABULARY)
    assert codes.tolist() == [[0] * len(COLUMNS)]


def test_columns_of_one_text_are_left_out_of_what_a_network_sees() -> None:
    codes = encode(shapes(LOW, name="bmm.fwd"), "pytorch", "bf16", VOCABULARY)
    assert one_hot(codes, VOCABULARY).tolist() == [[0, 1, 1, 0, 0, 1]]
    single = {column: ["only"] for column in COLUMNS}
    assert one_hot(codes * 0, single).shape == (1, 0)


def test_the_share_is_the_networks_part_of_the_mean() -> None:
    given_shapes = shapes([1, 512, 300, 256, 2, 2])
    trees, both, network = (np.log(cell(share).estimate(given_shapes, RATES).seconds[0]) for share in (0.0, 0.5, 1.0))
    assert both == pytest.approx((trees + network) / 2)
    assert trees != network


@pytest.mark.parametrize(
    ("framework", "setting"),
    [
        ("vllm", "serving"),
        ("sglang+trtllm+vllm", "serving"),
        ("TRTLLM 1.0.0", "serving"),
        ("TensorFlow 1.x", "tensorflow"),
        ("PyTorch 2.4", "pytorch"),
        ("", "unknown"),
    ],
)
def test_a_setting_is_a_framework_without_its_version(framework: str, setting: str) -> None:
    assert setting_of(framework) == setting


# Files


@pytest.mark.parametrize("parts", ["both", "trees", "network"])
def test_a_cell_comes_back_from_its_card_and_arrays(parts: str) -> None:
    whole = cell({"both": 0.5, "trees": 0.0, "network": 1.0}[parts])
    kept = Cell(
        **{name: getattr(whole, name) for name in Cell.__slots__ if name not in ("trees", "network")},
        trees=whole.trees if parts != "network" else None,
        network=whole.network if parts != "trees" else None,
    )
    card = json.loads(json.dumps(card_of(kept)))
    again = cell_from(card, arrays_of(kept))
    assert again.id == kept.id == "product/any/bf16/a100-sxm4-80gb"
    assert (again.trees is None, again.network is None) == (kept.trees is None, kept.network is None)
    given_shapes = shapes([1, 512, 300, 256, 2, 2], [8, 10_000, 5, 64, 2, 2])
    first, second = (each.estimate(given_shapes, RATES, framework="pytorch") for each in (kept, again))
    for name in ("seconds", "low", "high"):  # a network's weights are kept in half precision
        np.testing.assert_allclose(
            getattr(second, name), getattr(first, name), rtol=5e-3 if parts != "trees" else 1e-12
        )
    np.testing.assert_array_equal(second.outside, first.outside)


def test_every_family_can_be_a_cell() -> None:
    for name, family in FAMILIES.items():
        sizes = np.full((1, len(family.sizes)), 1.0)
        plain = Cell(
            family=name,
            setting=ANY,
            dtype="bf16",
            device=ANY,
            vocabulary={**VOCABULARY, "name": ["it.fwd"]},
            domain={"it.fwd": (sizes[0].tolist(), sizes[0].tolist())},
            interval={ANY: (-0.1, 0.1)},
            share=0.5,
        )
        given_shapes = Shapes(
            family=name,
            sizes=sizes * 2,
            passes=np.ones(1),
            details=(("it.fwd", "none", "none", "none"),),
            which=np.zeros(1, int),
        )
        found = plain.estimate(given_shapes, RATES)
        np.testing.assert_array_equal(found.seconds, roofline(given_shapes, RATES))
        assert found.outside[0] == pytest.approx(np.log(2))
