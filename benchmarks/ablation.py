"""How much the parts of FI-Net improve it: the network against its rivals, and FNO-Inception against simpler bodies.

    python -m benchmarks.ablation DATA [--seeds N] [--rows N] [--epochs N]

Reads ``operators.parquet`` of the folder DATA. The first study trains every rival on the same rows and features with
the same budget, for a few cells. The second study asks whether several mode counts side by side are better than one,
on a sequence that is long enough to tell: 64 sizes of square tiles, with only two flat features. The seed determines
the partition, the rows drawn from it, and the initial weights of a network. Errors are mean absolute percentage errors
on configurations that were not trained on. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import find_device
from traincast.estimate.operators.families import FAMILIES, Rates
from traincast.estimate.operators.features import FLOOR_S, TILE_CHANNELS
from traincast.fitting.operators.examples import Rows, cells_of, examples_of, rows_of, vocabulary_of
from traincast.fitting.operators.rivals import ALL, Budget, compare, count_of, evaluate, sample
from traincast.fitting.rows.dataset import OperatorTable, read_operators
from traincast.fitting.split import protocol_split
from traincast.fitting.train import Examples, TrainConfig, train_network

CELLS: Final = {
    "GEMM, bf16, H100": ("gemm", "bf16", "h100-sxm5-80gb", "serving"),
    "GEMM, bf16, A100": ("gemm", "bf16", "a100-sxm4-80gb", "serving"),
    "causal attention, bf16, H100": ("attention", "bf16", "h100-sxm5-80gb", "serving"),
    "convolution forward, fp32, V100, TensorFlow": ("conv2d", "fp32", "v100-sxm2-16gb", "tensorflow"),
}
"""Operation, dtype, device and framework of each cell that is studied."""
RIVALS: Final = ("LightGBM", "MLP", "Inception", "FNO", "FI-Net", "mean")
OURS: Final = "FI-Net"

SIDES: Final = np.geomspace(8.0, 1024.0, 64)
"""Sides of the square tiles of the long sequence."""
LONG_CELL: Final = "GEMM, bf16, A100"
INCEPTIONS: Final = ("FNO-Inception, 2 + 4 + 7 + 11 modes", "FNO-Inception, 4 + 8 + 16 + 33 modes")
BODIES: Final[dict[str, dict[str, Any]]] = {
    "no sequence": {"body": "none"},
    "sequence without modules": {"blocks": 0, "modes": (1,)},
    **{f"FNO, {m} modes": {"modes": (m,)} for m in (2, 4, 7, 11, 33)},
    INCEPTIONS[0]: {"modes": (2, 4, 7, 11)},
    INCEPTIONS[1]: {"modes": (4, 8, 16, 33)},
    "convolutional Inception, widths 1 + 3 + 5 + 7": {"body": "convolution", "modes": (1, 3, 5, 7)},
}
TEST_ROWS: Final = 3000
BATCH: Final = 128
"""Rows of a training step: few, so that a short training has enough steps."""
ROUNDS: Final = 500
STUDENT: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""97.5 % quantiles of Student's t by number of values."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Errors of a variant for each seed (per cent), the number of its parameters, and seconds of training."""

    errors: list[float]
    parameters: int
    seconds: float


@cache
def table(path: Path, cell: str) -> OperatorTable:
    """Return all rows of a cell."""
    op, dtype, device, setting = CELLS[cell]
    found = read_operators(path, ops=[op], dtypes=[dtype], devices=[device], phases=["fwd"])
    chosen = [rows for (_, where, *_), rows in cells_of(found).items() if where == setting]
    kept = found.take(chosen[0])
    if op != "attention":
        return kept
    causal = np.array([bool(configuration.attributes["causal"]) for configuration in kept.configurations])
    return kept.take(causal[kept.configuration])


def partition(path: Path, cell: str, *, rows: int, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of a cell to train on and to test on."""
    op, *_ = CELLS[cell]
    family = {"gemm": "product", "attention": "attention", "conv2d": "conv"}[op]
    found = table(path, cell)
    split = protocol_split(found.key, found.groups, found.seconds, seed=seed)
    train, test = (rows_of(family, found, side, by_setting=False) for side in (split.train, split.test))
    return sample(train, rows, seed=seed), sample(test, TEST_ROWS, seed=seed)


def study_rivals(path: Path, *, seeds: int, budget: Budget) -> Iterator[tuple[str, dict[str, Result]]]:
    """Yield the results of all rivals on each cell."""
    for cell in CELLS:
        scores = []
        for seed in range(seeds):
            train, test = partition(path, cell, rows=budget.rows, seed=seed)
            found = compare(train, test, names=RIVALS, seed=seed, budget=budget)
            scores.append({score.rival: score for score in found if score.operator == ALL})
            _tell(f"{cell}, seed {seed}: " + ", ".join(f"{name} {s.mape:.2f}" for name, s in scores[-1].items()))
        yield (
            cell,
            {
                name: Result(
                    errors=[by_name[name].mape for by_name in scores],
                    parameters=scores[-1][name].parameters,
                    seconds=float(np.mean([by_name[name].train_s for by_name in scores])),
                )
                for name in RIVALS
            },
        )


def long_examples(rows: Rows, vocabulary: Mapping[str, Sequence[str]], rates: Rates) -> Examples:
    """Return examples with a sequence over :data:`SIDES`; flat features are the baseline and FLOPs over bytes."""
    family = FAMILIES[rows.shapes.family]
    b, m, n, k = (x[:, None] for x in family.product(rows.shapes.sizes))
    flops, nbytes = family.amounts(rows.shapes.sizes)
    size = (nbytes[:, None]) / (b * (m * k + k * n + m * n))
    down, across = np.ceil(m / SIDES), np.ceil(n / SIDES)
    tiles = b * down * across
    waves = tiles / rates.num_sms
    compute = np.ceil(waves) * (2.0 * SIDES**2) * k / (rates.peak / rates.num_sms)
    traffic = b * (across * m * k + down * k * n + m * n) * size / (3.0 * rates.bandwidth)
    passes, baseline = rows.shapes.passes[:, None], rows.found.baseline_s[:, None]
    channels = {
        "waves": np.log2(waves),
        "wave_fill": waves / np.ceil(waves),
        "tile_fill": b * m * n / (tiles * SIDES**2),
        "time": np.log2((passes * np.maximum(compute, traffic) + FLOOR_S) / baseline),
        "depth": np.log2(k * np.minimum(1.0, waves)),
    }
    sequence = np.stack([channels[name] for name in TILE_CHANNELS], axis=2).astype(np.float32)
    flat = np.stack([np.log2(rows.found.baseline_s), np.log2(flops / nbytes)], axis=1).astype(np.float32)
    return examples_of(rows, vocabulary)._replace(flat=flat, tiles=sequence)


def study_bodies(path: Path, *, seeds: int, budget: Budget) -> dict[str, Result]:
    """Train networks that differ only in their body on the long sequence."""
    errors: dict[str, list[float]] = {name: [] for name in BODIES}
    seconds: dict[str, list[float]] = {name: [] for name in BODIES}
    parameters: dict[str, int] = {}
    _, dtype, device, _ = CELLS[LONG_CELL]
    rates = Rates.of(find_device(device), dtype)
    for seed in range(seeds):
        sides = partition(path, LONG_CELL, rows=budget.rows, seed=seed)
        vocabulary = vocabulary_of(sides[0])
        train, test = (long_examples(rows, vocabulary, rates) for rows in sides)
        for name, body in BODIES.items():
            begin = time.perf_counter()
            network = train_network(
                train,
                size={"hidden": 96, **body},
                config=TrainConfig(epochs=budget.epochs, batch=budget.batch),
                seed=seed,
            )
            seconds[name].append(time.perf_counter() - begin)
            errors[name].append(_mape(evaluate(network, test), test.target))
            parameters[name] = count_of(network)
            _tell(f"{name}, seed {seed}: {errors[name][-1]:.2f} in {seconds[name][-1]:.0f} s")
    return {
        name: Result(errors=errors[name], parameters=parameters[name], seconds=float(np.mean(seconds[name])))
        for name in BODIES
    }


def _mape(said: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> float:
    return float(np.abs(np.expm1(said - target)).mean() * 100.0)


def markdown(results: Mapping[str, Result]) -> str:
    """Return a table of variants, the best first."""
    lines = ["| variant | MAPE, % | parameters | training, s |", "|---|---|---|---|"]
    for name, result in sorted(results.items(), key=lambda item: np.mean(item[1].errors)):
        lines.append(f"| {name} | {_spread(result.errors)} | {result.parameters:,} | {result.seconds:.1f} |")
    return "\n".join(lines)


def verdict(results: Mapping[str, Result], ours: Sequence[str], *, without: Sequence[str] = ()) -> str:
    """Say whether the best of ``ours`` is better than the best of the others, by differences within each seed."""
    mean = {name: float(np.mean(result.errors)) for name, result in results.items() if name not in without}
    own = min(ours, key=mean.__getitem__)
    other = min((name for name in mean if name not in ours), key=mean.__getitem__)
    ahead = np.array(results[other].errors) - np.array(results[own].errors)
    gap, noise = float(ahead.mean()), _half_width(ahead)
    if abs(gap) <= noise:
        said = f"**{own}** and **{other}** cannot be told apart"
    else:
        said = f"**{own if gap > 0 else other}** is better than **{other if gap > 0 else own}**"
    return f"{said}: {other} less {own} is {gap:+.2f} ± {noise:.2f} points (95 %, {len(ahead)} seeds)."


def _half_width(values: npt.NDArray[np.float64]) -> float:
    """Return the half width of the 95 % interval of a mean, by Student's t."""
    if len(values) < 2:
        return float("inf")
    return float(STUDENT.get(len(values), 2.0) * values.std(ddof=1) / np.sqrt(len(values)))


def _spread(errors: Sequence[float]) -> str:
    return f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1) if len(errors) > 1 else 0.0:.2f}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both studies and print them."""
    parser = argparse.ArgumentParser(prog="benchmarks.ablation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with operators.parquet")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1500, help="rows to learn from")
    parser.add_argument("--epochs", type=int, default=12)
    chosen = parser.parse_args(arguments)
    budget = Budget(epochs=chosen.epochs, batch=BATCH, rounds=ROUNDS, rows=chosen.rows)
    path = chosen.data / "operators.parquet"
    begin = time.perf_counter()
    print(f"{chosen.seeds} seeds, {chosen.rows} rows, {chosen.epochs} epochs of batches of {BATCH}, {ROUNDS} rounds.")
    print("\n## FI-Net against its rivals")
    for cell, results in study_rivals(path, seeds=chosen.seeds, budget=budget):
        print(f"\n### {cell}\n\n{markdown(results)}\n\n{verdict(results, [OURS], without=['mean'])}", flush=True)
    print(f"\n## Bodies on a sequence of {len(SIDES)} tiles: {LONG_CELL}\n")
    results = study_bodies(path, seeds=chosen.seeds, budget=budget)
    print(f"{markdown(results)}\n\n{verdict(results, INCEPTIONS)}")
    _tell(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
