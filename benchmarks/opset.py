"""FI-Net and its rivals on the operator set, as measured on one core of a processor.

The table ``benchmarks/data/opset_cpu.parquet`` has the small operator set, measured twice. Each rival is trained per
family of operators, on the partition in which no configuration is on both sides. Errors are means over three seeds,
each with its own partition. ``python -m benchmarks.learned opset`` prints them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.markdown import percent, table
from traincast.estimate.operators.features import family_of, shapes_of
from traincast.fitting.operators.rivals import ALL, Budget, RivalScore, compare_cells
from traincast.fitting.rows.dataset import OperatorTable, read_operators

TABLE: Final = Path(__file__).parent / "data" / "opset_cpu.parquet"
SEEDS: Final = 3
BUDGET: Final = Budget(epochs=50, batch=64, rounds=300)
SHOWN: Final = ("roofline", "LightGBM", "FI-Net", "mean")
"""The rivals of the table by kind of operator."""

KINDS: Final[Mapping[str, str]] = {
    "convolution, forward": "conv2d.fwd",
    "depthwise convolution, forward": "convolution",
    "convolutions, by inputs": "conv2d.bwd_data",
    "convolutions, by weights": "conv2d.bwd_weight",
    "convolutions, both gradients": "conv2d.bwd convolution_backward",
    "dense products and their gradients": "gemm.fwd",
    "batched products and their gradients": "bmm.fwd",
    "batch norm": "native_batch_norm native_batch_norm_backward",
    "layer norms": "native_layer_norm native_layer_norm_backward rms_norm rms_norm_backward",
    "pooling": "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward",
    "activations": "relu_ threshold_backward hardtanh_ hardtanh_backward gelu gelu_backward silu silu_backward",
    "softmax and losses": "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data nll_loss_forward "
    "nll_loss_backward",
    "elementwise and reductions": "add mul div mean sum",
    "concatenation, split, transposition": "cat split_with_sizes_copy clone",
    "embeddings": "embedding embedding_dense_backward",
    "updates": "adamw sgd",
    "recurrent layers, forward": "rnn.fwd",
    "recurrent layers, backward": "rnn.bwd",
    "attention": "attention.fwd attention.bwd",
    "grouped products": "grouped_gemm.fwd grouped_mm grouped_mm_backward",
}
"""Kinds of operators, and the names of the operators of each."""


def opset(data: Path) -> Iterable[str]:
    """Errors by family and by kind of operator, beside the difference of two runs.

    ``data`` is a table of ``traincast profile operators``; the shipped one if it is the empty path.
    """
    measured = read_operators(TABLE if data == Path() else data, derive=True)
    scores = [compare_cells(measured, seed=seed, budget=BUDGET) for seed in range(SEEDS)]
    differ = run_differences(measured)
    yield by_family(scores, differ)
    yield ""
    yield by_kind([score for found in scores for score in found], differ)


def run_differences(measured: OperatorTable) -> dict[str, list[float]]:
    """How far two runs of an operator are apart, in per cent of their mean, by the operator's name."""
    runs: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    for operator, key, seconds in zip(
        measured.operators, measured.key.tolist(), measured.seconds.tolist(), strict=True
    ):
        family = family_of(operator)
        if family is not None:
            runs[key, shapes_of(family, [operator]).names[0]].append(seconds)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for (_, name), times in runs.items():
        if len(times) == 2:
            found[name].append(200.0 * abs(times[0] - times[1]) / sum(times))
    return dict(found)


def by_family(scores: Sequence[Sequence[RivalScore]], differ: Mapping[str, Sequence[float]]) -> str:
    """The MAPE of every rival in every cell, with its standard deviation over seeds."""
    overall = [score for found in scores for score in found if score.operator == ALL]
    cells = list(dict.fromkeys(score.cell for score in overall))
    rows = []
    for rival in dict.fromkeys(score.rival for score in overall):
        own = [[s.mape for s in overall if s.rival == rival and s.cell == cell] for cell in cells]
        rows.append([rival, *(f"{np.mean(errors):.1f} ± {np.std(errors):.1f}" for errors in own)])
    tested = [[s.n for s in overall if s.rival == rows[0][0] and s.cell == cell] for cell in cells]
    rows.append(["operators tested", *(f"{np.mean(counts):.0f}" for counts in tested)])
    names = {cell: {s.operator for found in scores for s in found if s.cell == cell} for cell in cells}
    apart = [[d for name in names[cell] for d in differ.get(name, ())] for cell in cells]
    rows.append(["two runs differ by", *(f"{np.mean(own):.1f}" if own else "–" for own in apart)])
    return table(["MAPE, %", *(cell.partition("/")[0] for cell in cells)], rows)


def by_kind(scores: Sequence[RivalScore], differ: Mapping[str, Sequence[float]]) -> str:
    """The MAPE of some rivals for every kind of operator, over all seeds."""
    rows = []
    for kind, names in KINDS.items():
        own = [score for score in scores if score.operator in names.split()]
        apart = [d for name in names.split() for d in differ.get(name, ())]
        if not own:
            continue
        rows.append(
            [
                kind,
                f"{sum(score.n for score in own if score.rival == SHOWN[0]) / SEEDS:.0f}",
                *(percent(_mean_error([score for score in own if score.rival == rival])) for rival in SHOWN),
                percent(float(np.mean(apart))) if apart else "–",
            ]
        )
    return table(["operators", "tested on", *SHOWN, "two runs differ by"], rows)


def _mean_error(scores: Sequence[RivalScore]) -> float:
    """The mean error of the operators of several scores."""
    return sum(score.n * score.mape for score in scores) / sum(score.n for score in scores)
