"""Rivals: all learn what is there to learn, and are scored alike."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest

from traincast import RequestError, UnknownNameError
from traincast.cluster import find_device
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import features, shapes_of
from traincast.fitting.operators.examples import Rows, examples_of, vocabulary_of
from traincast.fitting.operators.rivals import ALL, RIVALS, Budget, RivalScore, compare, count_of, evaluate, sample
from traincast.fitting.rows.operator import RowConfig, operator_of
from traincast.fitting.train import TrainConfig, train_network

DEVICE = find_device("A100-SXM4-80GB")
BUDGET = Budget(epochs=10, batch=64, rounds=80, rows=500)


@cache
def rows(count: int, seed: int) -> Rows:
    """Products whose efficiency depends on size, waves and name."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(5, 13, size=(count, 3))).astype(int).tolist()
    batches = rng.choice([1, 16], count).tolist()
    configurations = [
        RowConfig("gemm" if b == 1 else "bmm", "fwd", "bf16", b, *s) for b, s in zip(batches, sizes, strict=True)
    ]
    shapes = shapes_of("product", [operator_of(configuration) for configuration in configurations])
    found = features(shapes, Rates.of(DEVICE, "bf16"))
    log_m, fill = found.flat[:, 1].astype(float), found.tiles[:, 12, 1].astype(float)
    settings = rng.choice(["pytorch", "serving"], count).tolist()
    said = 0.4 * np.sin(log_m) - 0.6 * fill + 0.5 * (np.array(batches) > 1) + 0.2 * (np.array(settings) == "pytorch")
    return Rows(
        shapes=shapes,
        found=found,
        seconds=found.baseline_s * np.exp(1.0 + said + 0.01 * rng.normal(size=count)),
        setting=settings,
        dtype=["bf16"] * count,
        device=[DEVICE.name] * count,
        key=np.arange(count, dtype=np.uint64),
    )


@cache
def scores() -> tuple[RivalScore, ...]:
    return tuple(compare(rows(600, 0), rows(300, 1), budget=BUDGET))


def overall(rival: str) -> RivalScore:
    return next(score for score in scores() if score.rival == rival and score.operator == ALL)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("rival", [name for name in RIVALS if name != "roofline"])
def test_every_rival_is_better_than_the_roofline(rival: str) -> None:
    assert overall(rival).mape < 0.8 * overall("roofline").mape


@pytest.mark.parametrize("rival", RIVALS)
def test_every_rival_says_finite_values_and_the_same_for_the_same_seed(rival: str) -> None:
    train, test = rows(80, 2), rows(40, 3)
    budget = Budget(epochs=1, batch=16, rounds=3, rows=60)
    first, again = (RIVALS[rival](train, test, vocabulary_of(train), seed=0, budget=budget) for _ in range(2))
    assert first.shape == (40,)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)


def test_scores_are_of_each_operator_and_of_all() -> None:
    assert [score.rival for score in scores() if score.operator == ALL] == list(RIVALS)
    for rival in RIVALS:
        by_name = {score.operator: score for score in scores() if score.rival == rival}
        assert list(by_name) == ["bmm.fwd", "gemm.fwd", ALL]
        assert by_name["bmm.fwd"].n + by_name["gemm.fwd"].n == by_name[ALL].n == 300
        mean = sum(by_name[name].mape * by_name[name].n for name in ("bmm.fwd", "gemm.fwd")) / 300
        assert mean == pytest.approx(by_name[ALL].mape)
        assert 0 < by_name[ALL].median < by_name[ALL].p90
        assert by_name[ALL].train_s >= 0
        assert by_name[ALL].inference_s > 0
        assert by_name[ALL].parameters > 0


def test_the_roofline_learns_one_constant() -> None:
    train, test = rows(80, 2), rows(40, 3)
    said = RIVALS["roofline"](train, test, vocabulary_of(train), seed=0, budget=BUDGET)
    assert set(said.tolist()) == {float(np.median(train.target))}
    assert overall("roofline").parameters == 1


def test_the_mean_is_that_of_the_logarithms_of_its_parts_and_trains_them_once() -> None:
    train, test = rows(80, 2), rows(40, 3)
    budget = Budget(epochs=1, batch=16, rounds=3, rows=60)
    parts = [RIVALS[name](train, test, vocabulary_of(train), seed=0, budget=budget) for name in ("LightGBM", "FI-Net")]
    said = RIVALS["mean"](train, test, vocabulary_of(train), seed=0, budget=budget)
    np.testing.assert_allclose(said, (parts[0] + parts[1]) / 2, rtol=1e-12)
    assert overall("mean").train_s == overall("LightGBM").train_s + overall("FI-Net").train_s
    assert overall("mean").parameters == overall("LightGBM").parameters + overall("FI-Net").parameters


def test_convolutions_are_evaluated_as_every_other_body_is() -> None:
    train = rows(80, 2)
    examples = examples_of(train, vocabulary_of(train))
    network = train_network(examples, size={"modes": (3,), "hidden": 8, "width": 6}, config=TrainConfig(epochs=1))
    np.testing.assert_array_equal(evaluate(network, examples), network(*examples[:3]))
    size = {"body": "convolution", "modes": (1, 3), "hidden": 8, "width": 6}
    convolutions = train_network(examples, size=size, config=TrainConfig(epochs=1))
    whole = evaluate(convolutions, examples)
    some = np.array([3, 50])
    np.testing.assert_allclose(evaluate(convolutions, examples.take(some)), whole[some], atol=1e-5)
    assert count_of(convolutions) == sum(weight.size for weight in convolutions.weights.values())


def test_a_budget_of_rows_is_drawn_by_the_seed() -> None:
    whole = rows(80, 2)
    first, again, other = (sample(whole, 20, seed=seed).key.tolist() for seed in (0, 0, 1))
    assert first == again == sorted(set(first))
    assert len(first) == 20
    assert first != other
    assert sample(whole, 80, seed=0) is whole
    with pytest.raises(RequestError, match="0 rows"):
        sample(whole, 0, seed=0)


def test_progress_counts_rivals() -> None:
    seen: list[tuple[int, int]] = []
    names = ["roofline", "ridge"]
    compare(rows(80, 2), rows(40, 3), names=names, budget=BUDGET, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]


def test_an_unknown_rival_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown rival 'oracle': known are .*FI-Net.*LightGBM.*ridge"):
        compare(rows(80, 2), rows(40, 3), names=["ridge", "oracle"], budget=BUDGET)


def test_no_rows_are_refused() -> None:
    none = rows(40, 3).take(np.zeros(0, dtype=np.int64))
    with pytest.raises(RequestError, match="0 rows to train on and 40 to test on"):
        compare(none, rows(40, 3), budget=BUDGET)


@pytest.mark.parametrize("rival", ["ridge", "random forest"])
def test_a_missing_library_says_how_to_install_it(rival: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(RequestError, match=r"pip install 'traincast\[fit\]'"):
        compare(rows(80, 2), rows(40, 3), names=[rival], budget=BUDGET)
