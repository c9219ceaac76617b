"""Models of operator times, compared on the same rows, with the same features and budget.

The rivals are those of swPredictor's comparison: the roofline times one constant, a ridge regression, a random forest,
boosted trees, a plain network (MLP), convolutions of several widths (Inception), Fourier layers with one number of
modes (FNO), and FI-Net. One more rival is the mean, in logarithms, of boosted trees and FI-Net. All predict the
logarithm of the time over the baseline. All see the flat features, the tiles and the texts of an operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import MissingDependencyError, RequestError, UnknownNameError
from traincast.estimate.operators.cells import one_hot
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.operators.examples import Rows, cells_of, codes_of, examples_of, rows_of, table_of, vocabulary_of
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.split import protocol_split
from traincast.fitting.train import Examples, TrainConfig, train_network

if TYPE_CHECKING:
    from traincast.estimate.operators.network import Network


Floats: TypeAlias = npt.NDArray[np.float64]
Vocabulary: TypeAlias = Mapping[str, Sequence[str]]

ALL: Final = "all"
"""Stands in place of an operator's name in the score over all rows."""
KERNELS: Final = (1, 3, 5, 7)
"""Widths of the convolutions of the Inception module."""
MODES: Final = (2, 4, 7, 11)
"""Numbers of modes of FI-Net's branches. Two modes follow slow changes along the tiles; 11 are all that twenty
positions have."""
ONE_MODE_COUNT: Final = 7
_WARM_UP: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits for every rival: ``epochs`` and ``batch`` of networks, ``rounds`` of trees, ``rows`` to learn from."""

    epochs: int = 40
    batch: int = 512
    rounds: int = 700
    rows: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalScore:
    """Absolute errors of a rival, in per cent, on the operators of one name or on all (:data:`ALL`).

    ``parameters`` is how many numbers it learned (for trees: thresholds and leaves), ``train_s`` the seconds of
    training, ``inference_s`` the seconds for 1,000 operators. These three are the same in all scores of a rival.
    """

    rival: str
    operator: str
    cell: str = ""
    n: int
    mape: float
    median: float
    p90: float
    parameters: int
    train_s: float
    inference_s: float


class TrainedRival(NamedTuple):
    """A trained rival: ``says`` predicts log(time / baseline) of rows; ``parameters`` counts what it learned."""

    says: Callable[[Rows], Floats]
    parameters: int


class Learner(Protocol):
    """Trains a rival."""

    def __call__(self, train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
        """Return the rival trained on ``train``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A kind of model: trained by ``fit``, or the mean ``of`` other rivals."""

    fit: Learner | None = None
    of: tuple[str, ...] = ()

    def __call__(self, train: Rows, test: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> Floats:
        """Train on ``train`` and return log(time / baseline) of the rows of ``test``."""
        if self.fit is None:
            said = [RIVALS[name](train, test, vocabulary, seed=seed, budget=budget) for name in self.of]
            return np.asarray(np.mean(said, axis=0))
        return self.fit(sample(train, budget.rows, seed=seed), vocabulary, seed=seed, budget=budget).says(test)


def sample(rows: Rows, count: int, *, seed: int) -> Rows:
    """Return ``count`` rows drawn at random, in their order; all rows if there are no more than ``count``."""
    if count < 1:
        raise RequestError(f"a budget of {count} rows: at least one is needed to learn from")
    if len(rows) <= count:
        return rows
    return rows.take(np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False)))


def compare(
    train: Rows,
    test: Rows,
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    budget: Budget,
    progress: Callable[[int, int], None] | None = None,
) -> list[RivalScore]:
    """Train the rivals called ``names`` (default: all); return their scores for each operator name and for all rows.

    Each rival is trained once, even if it is also part of a mean. ``progress`` is called with the number of rivals
    that are done, and the number of all.
    """
    chosen = list(RIVALS) if names is None else list(names)
    for name in chosen:
        if name not in RIVALS:
            raise UnknownNameError("rival", name, RIVALS)
    if not len(train) or not len(test):
        raise RequestError(f"{len(train)} rows to train on and {len(test)} to test on: neither may be empty")
    learned = sample(train, budget.rows, seed=seed)
    vocabulary = vocabulary_of(learned)
    fitted: dict[str, tuple[TrainedRival, float]] = {}

    def fit(name: str) -> tuple[TrainedRival, float]:
        if name not in fitted:
            begin = time.perf_counter()
            learn = RIVALS[name].fit
            if learn is not None:
                found = learn(learned, vocabulary, seed=seed, budget=budget)
                fitted[name] = found, time.perf_counter() - begin
            else:
                parts = [fit(part) for part in RIVALS[name].of]
                fitted[name] = _mean([part for part, _ in parts]), sum(seconds for _, seconds in parts)
        return fitted[name]

    scores = []
    for done, name in enumerate(chosen):
        rival, train_s = fit(name)
        rival.says(test.take(np.arange(min(_WARM_UP, len(test)))))
        begin = time.perf_counter()
        said = rival.says(test)
        inference_s = (time.perf_counter() - begin) * 1000.0 / len(test)
        scores += _scores(name, test, said, (rival.parameters, train_s, inference_s))
        if progress is not None:
            progress(done + 1, len(chosen))
    return scores


def _scores(rival: str, test: Rows, said: Floats, cost: tuple[int, float, float]) -> list[RivalScore]:
    parameters, train_s, inference_s = cost
    error = np.abs(np.expm1(said - test.target)) * 100.0
    names = np.array(test.names)
    parts = {name: error[names == name] for name in sorted(set(test.names))} | {ALL: error}
    return [
        RivalScore(
            rival=rival,
            operator=name,
            n=len(part),
            mape=float(part.mean()),
            median=float(np.median(part)),
            p90=float(np.quantile(part, 0.9)),
            parameters=parameters,
            train_s=train_s,
            inference_s=inference_s,
        )
        for name, part in parts.items()
    ]


def _mean(parts: Sequence[TrainedRival]) -> TrainedRival:
    return TrainedRival(
        lambda rows: np.asarray(np.mean([part.says(rows) for part in parts], axis=0)),
        sum(part.parameters for part in parts),
    )


# The rivals


def _roofline(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
    constant = float(np.median(train.target))
    return TrainedRival(lambda rows: np.full(len(rows), constant), 1)


def _dense(rows: Rows, vocabulary: Vocabulary) -> Floats:
    """All features as numbers, with texts one-hot encoded."""
    return rows.found.table(one_hot(codes_of(rows, vocabulary), vocabulary)).astype(float)


def _ridge(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
    sklearn = _sklearn("a ridge regression")
    table = _dense(train, vocabulary)
    mean, spread = table.mean(axis=0), table.std(axis=0)
    spread[spread < 1e-6] = 1.0
    model = sklearn.linear_model.Ridge(alpha=1.0).fit((table - mean) / spread, train.target)
    return TrainedRival(
        lambda rows: np.asarray(model.predict((_dense(rows, vocabulary) - mean) / spread), float), 1 + len(mean)
    )


def _random_forest(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
    """One deep tree costs about as much as ten rounds of shallow ones, so there is one tree for ten rounds."""
    sklearn = _sklearn("a random forest")
    model = sklearn.ensemble.RandomForestRegressor(
        n_estimators=max(10, budget.rounds // 10), max_features=0.4, n_jobs=1, random_state=seed
    )
    model.fit(table_of(train, vocabulary), train.target)
    nodes = sum(tree.tree_.node_count for tree in model.estimators_)
    return TrainedRival(lambda rows: np.asarray(model.predict(table_of(rows, vocabulary)), float), nodes)


def _lightgbm(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
    trees = grow(table_of(train, vocabulary), train.target, BoostingConfig(rounds=budget.rounds), seed=seed)
    nodes = trees.leaves.size + trees.nodes[..., 0].size
    return TrainedRival(lambda rows: trees(table_of(rows, vocabulary)), nodes)


def _mlp(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
    """A network without modules over the tiles: it reads the tiles as flat features, without periodic embedding."""
    plain = train.found.tiles[0].size
    size = {"body": "none", "smooth": plain}
    config = TrainConfig(epochs=budget.epochs, batch=budget.batch)
    network = train_network(_flattened(train, vocabulary), size=size, config=config, seed=seed)
    return TrainedRival(lambda rows: network(*_flattened(rows, vocabulary)[:3]), count_of(network))


def _flattened(rows: Rows, vocabulary: Vocabulary) -> Examples:
    return examples_of(rows, vocabulary)._replace(flat=rows.found.table())


def _network(size: dict[str, Any]) -> Learner:
    """Return a learner that trains a network of ``size``."""

    def fit(train: Rows, vocabulary: Vocabulary, *, seed: int, budget: Budget) -> TrainedRival:
        network = train_network(
            examples_of(train, vocabulary),
            size=dict(size),
            config=TrainConfig(epochs=budget.epochs, batch=budget.batch),
            seed=seed,
        )
        return TrainedRival(lambda rows: evaluate(network, examples_of(rows, vocabulary)), count_of(network))

    return fit


def count_of(network: Network) -> int:
    """Return how many numbers a network learned."""
    return sum(weight.size for weight in network.weights.values())


def evaluate(network: Network, examples: Examples) -> Floats:
    """Return what a trained network predicts for ``examples``. Networks of convolutions need PyTorch; others NumPy."""
    if network.config["body"] != "convolution":
        return network(examples.flat, examples.tiles, examples.categories)
    import torch

    from traincast.fitting.operators.fi_net import FINet, NetConfig

    model = FINet(NetConfig(**{**network.config, "modes": tuple(network.config["modes"])}))
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in network.weights.items()})
    scale = network.scale
    flat = (examples.flat[:, scale["kept"]] - scale["flat_mean"]) / scale["flat_std"]
    tiles = np.clip((examples.tiles - scale["tile_mean"]) / scale["tile_std"], -5, 5)
    columns = [torch.from_numpy(x).split(2048) for x in (flat, tiles, examples.categories)]
    with torch.no_grad():
        said = [model(*part).numpy() for part in zip(*columns, strict=True)]
    return np.concatenate(said).astype(np.float64)


def _sklearn(purpose: str) -> Any:
    try:
        import sklearn.ensemble
        import sklearn.linear_model
    except ImportError as error:
        raise MissingDependencyError("scikit-learn", purpose, extra="fit") from error
    return sklearn


RIVALS: Final[dict[str, Rival]] = {
    "roofline": Rival(fit=_roofline),
    "ridge": Rival(fit=_ridge),
    "random forest": Rival(fit=_random_forest),
    "LightGBM": Rival(fit=_lightgbm),
    "MLP": Rival(fit=_mlp),
    "Inception": Rival(fit=_network({"body": "convolution", "modes": KERNELS})),
    "FNO": Rival(fit=_network({"modes": (ONE_MODE_COUNT,)})),
    "FI-Net": Rival(fit=_network({"modes": MODES})),
    "mean": Rival(of=("LightGBM", "FI-Net")),
}
"""The rivals by name; each is called with rows to train on, rows to test on, a vocabulary, a seed and a budget."""


FEWEST = 40
"""Measured operators that a comparison needs."""


def compare_cells(
    table: OperatorTable,
    *,
    seed: int = 0,
    names: Sequence[str] | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[RivalScore]:
    """Scores of every rival in every cell of ``table``, all on the same split."""
    split = protocol_split(table.key, table.groups, table.seconds, seed=seed)
    scores: list[RivalScore] = []
    for key, rows in cells_of(table).items():
        inside = np.zeros(len(table), dtype=bool)
        inside[rows] = True
        train, test = (
            rows_of(key[0], table, side.take(inside[side.first]), by_setting=False)
            for side in (split.train, split.test)
        )
        if len(train) + len(test) < FEWEST or not len(train) or not len(test):
            continue
        cell = "/".join(key)
        if progress is not None:
            progress(f"{cell}: comparing on {len(train)} operators")
        found = compare(train, test, names=names, seed=seed, budget=budget or Budget())
        scores += [replace(score, cell=cell) for score in found]
    return scores
