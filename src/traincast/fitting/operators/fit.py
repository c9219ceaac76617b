"""Fit operator times: one model per cell, and one network per family for devices without measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.engines import Engine, local_engine
from traincast.errors import RequestError
from traincast.estimate.operators.cells import ANY, Cell, beside
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.operators.adapt import adapt, learning_curve
from traincast.fitting.operators.examples import (
    CellKey,
    Rows,
    cells_of,
    examples_of,
    joined_rows,
    rows_of,
    table_of,
    vocabulary_of,
)
from traincast.fitting.operators.points import LAWS, SETTINGS, bare_name, fit_bare
from traincast.fitting.operators.scores import Score, conformal, mape_of, residual_of, said_of, scores_of
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.split import Merged, Split, carve_validation, protocol_split
from traincast.fitting.train import TrainConfig, train_network

Progress = Callable[[str], None]

HALF: Final = ("bf16", "fp16")
FEWEST: Final = 300
"""Measured operators that a cell needs for a model of its own; with fewer, it adapts the network of its family."""
SHARES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)
"""Shares of the network in the mean with the trees; validation chooses one of them."""
GENERAL_SHARE: Final = 0.25
"""Share of the network on a device that was not measured; the rest comes from similar measured devices."""
ENOUGH_HELD: Final = 1000
"""Validation rows that suffice to choose a share and an interval: further rows are better used for training."""
ROUNDS: Final = {"product": 400, "conv": 200, "attention": 200, "grouped": 120, "recurrent": 120, "traffic": 120}
"""Number of trees in a large cell: more would gain too little for their bytes and time."""
OTHER_ROUNDS: Final = 200
"""The same for products in dtypes other than bf16 and fp16, which are rare in training."""
ROWS_PER_ROUND: Final = 50
CELL_SIZE: Final = {"body": "none", "hidden": 128, "frequencies": 4, "spread": 0.15}
GENERAL_SIZE: Final = {"width": 24, "blocks": 2, "hidden": 160, "frequencies": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """What to fit: cells whose name matches ``only``; those that match ``networks`` also get a network.

    ``general`` says whether to fit the networks of all devices, one per family.
    """

    seed: int = 0
    only: tuple[str, ...] = ("*",)
    networks: tuple[str, ...] = ("*",)
    general: bool = True
    general_rows: int = 2000
    general_epochs: int = 8
    boosting: BoostingConfig = field(default_factory=BoostingConfig)
    training: TrainConfig = field(default_factory=TrainConfig)

    def chooses(self, name: str) -> bool:
        """Whether the cell called ``name`` is fitted."""
        return any(fnmatchcase(name, pattern) for pattern in self.only)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCell:
    """A cell with its scores on test rows, by operator and for ``all``.

    For an adapted network, ``curve`` has the error by the number of operators that it was adapted to.
    """

    cell: Cell
    rows: int
    scores: Mapping[str, Score]
    seconds: float
    curve: Mapping[int, float] = field(default_factory=dict)


def fit_operators(
    table: OperatorTable,
    config: FitConfig | None = None,
    *,
    base: Base | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> list[FittedCell]:
    """Fit every cell of ``table``, each as one task of ``engine`` (by default in this process).

    Cells with fewer than :data:`FEWEST` operators adapt the network of their family: that of ``base``, or the one
    fitted here. ``progress`` is given a line for each cell as soon as it is fitted.
    """
    config = config or FitConfig()
    say = progress or (lambda text: None)
    split = protocol_split(table.key, table.groups, table.seconds, seed=config.seed)
    cells = cells_of(table)
    if not cells:
        raise RequestError("no row of the table describes an operator of a known family: there is nothing to fit")
    work = _Work(table=table, split=split, cells=cells, config=config)
    families = [*dict.fromkeys(key[0] for key in cells)] if config.general else []
    tasks: list[CellKey | str] = [
        family for family in families if family != "recurrent" and config.chooses(general_name(family))
    ]
    tasks += [bare_name(family) for family in LAWS if config.chooses(bare_name(family))]
    cells = {key: rows for key, rows in cells.items() if config.chooses("/".join(key))}
    tasks += [key for key in cells if len(work.side(key, split.train)) + len(work.side(key, split.test)) >= FEWEST]
    found: dict[int, FittedCell] = {}

    def take(index: int, made: FittedCell | None) -> None:
        if made is not None:
            found[index] = made
            say(_line(made))

    (engine or local_engine(1)).run("traincast.fitting.operators.fit:worker", work, tasks, done=take)
    fitted = [found[index] for index in sorted(found)]
    general = dict(base.general if base else {}) | {m.cell.family: m.cell for m in fitted if m.cell.setting == ANY}
    fresh = {m.cell.family for m in fitted if m.cell.setting == ANY}  # families that do not need the base
    measured = [pair for pair in (base.measured if base else []) if pair[1].family not in fresh]
    measured += [(table.devices[m.cell.device], m.cell) for m in fitted if m.cell.device != ANY]
    done = {(m.cell.family, m.cell.dtype, m.cell.device) for m in fitted}
    for key in cells:
        family, setting, dtype, device = key
        if family in LAWS and setting in SETTINGS:
            continue  # in the cell of bare kernels
        if key in tasks or family not in general or (family, dtype, device) in done:
            continue
        made = adapt_cell(key, table.take(cells[key]), general[family], measured)
        if made is not None:
            fitted.append(made)
            say(_line(made))
    if not fitted:
        most = max(map(len, cells.values()), default=0)
        raise RequestError(
            f"nothing could be fitted: the largest cell has {most} operators; it needs {FEWEST}, or a network of its "
            "family to adapt"
        )
    return fitted


def general_name(family: str) -> str:
    """The name of the cell of all devices of ``family``."""
    return "/".join((family, ANY, ANY, ANY))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The inputs of all tasks of a fit; a task is a cell, or a family whose network is fitted."""

    table: OperatorTable
    split: Split
    cells: Mapping[CellKey, npt.NDArray[np.int64]]
    config: FitConfig

    def side(self, key: CellKey, side: Merged) -> Merged:
        """The examples of one cell on one side of the split."""
        inside = np.zeros(len(self.table), dtype=bool)
        inside[self.cells[key]] = True
        return side.take(inside[side.first])

    def fit(self, task: CellKey | str) -> FittedCell | None:
        """Fit one task; ``None`` if a family has too few rows."""
        if isinstance(task, str) and task in map(bare_name, LAWS):
            found = fit_bare(task.partition("/")[0], self.table, self.split, self.cells)
            return FittedCell(**found._asdict()) if found else None
        if isinstance(task, str):
            return fit_general(task, self.table, self.split, self.cells, self.config)
        train, test = self.side(task, self.split.train), self.side(task, self.split.test)
        return fit_cell(task, self.table, train, test, self.config)


def worker(work: _Work) -> Callable[[CellKey | str], FittedCell | None]:
    """The setup of the engine's workers: return the function that fits one task."""
    return work.fit


def _line(made: FittedCell) -> str:
    score = made.scores["all"]
    return f"{made.cell.id}: {made.rows} operators, MAPE {score.mape:.2f} % (median {score.median:.2f})"


def fit_cell(key: CellKey, table: OperatorTable, train: Merged, test: Merged, config: FitConfig) -> FittedCell:
    """Fit trees, and a network if asked, to one cell; validation chooses their shares; intervals are conformal."""
    begun = time.perf_counter()
    family, setting, dtype, device = key
    share = min(0.12, max(0.05, ENOUGH_HELD / max(1, len(train))))
    carved = carve_validation(train, table.key, share=share, seed=config.seed)
    learn, held, judge = (rows_of(family, table, part, by_setting=False) for part in (carved.train, carved.test, test))
    vocabulary = vocabulary_of(learn)
    rounds = OTHER_ROUNDS if family == "product" and dtype not in HALF else ROUNDS[family]
    boosting = replace(config.boosting, rounds=min(rounds, max(100, len(learn) // ROWS_PER_ROUND)))
    trees = grow(table_of(learn, vocabulary), learn.target, boosting, seed=config.seed)
    network = None
    name = "/".join(key)
    if any(fnmatchcase(name, pattern) for pattern in config.networks):
        network = train_network(
            examples_of(learn, vocabulary), size=dict(CELL_SIZE), config=config.training, seed=config.seed,
        )  # fmt: skip
    cell = Cell(
        family=family, setting=setting, dtype=dtype, device=device, vocabulary=vocabulary, domain=domain_of(learn),
        interval={ANY: (0.0, 0.0)}, share=0.0, trees=trees, network=network,
    )  # fmt: skip
    if network is not None:
        errors = {s: mape_of(replace(cell, share=s), held) for s in SHARES}
        best = min(errors, key=lambda s: errors[s])
        cell = replace(cell, share=best, network=network if best > 0 else None, trees=trees if best < 1 else None)
    cell = replace(cell, interval=conformal(residual_of(cell, held), held.names))
    return FittedCell(
        cell=cell, rows=len(learn) + len(held), scores=scores_of(cell, judge), seconds=time.perf_counter() - begun
    )


def fit_general(
    family: str,
    table: OperatorTable,
    split: Split,
    cells: Mapping[CellKey, npt.NDArray[np.int64]],
    config: FitConfig,
    *,
    without: Collection[str] = (),
) -> FittedCell | None:
    """Fit the network of a family, which reads the device from its datasheet, to all devices except ``without``.

    Its interval comes from the errors on every third device, which a first training leaves out.
    """
    begun = time.perf_counter()

    def sampled(side: Merged, most: int) -> list[Rows]:
        generator = np.random.default_rng(config.seed)
        parts = []
        for key, rows in cells.items():
            if key[0] != family or key[3] in without:
                continue
            inside = np.zeros(len(table), dtype=bool)
            inside[rows] = True
            examples = np.flatnonzero(inside[side.first])
            if len(examples) > most:
                examples = np.sort(generator.choice(examples, most, replace=False))
            if len(examples):
                parts.append(rows_of(family, table, side.take(examples), by_setting=True))
        return parts

    by_cell = sampled(split.train, config.general_rows)
    if sum(map(len, by_cell)) < FEWEST:
        return None
    learn = joined_rows(by_cell)
    vocabulary = vocabulary_of(learn)
    devices = sorted(set(learn.device))
    cell = Cell(
        family=family, setting=ANY, dtype=ANY, device=ANY, vocabulary=vocabulary, domain=domain_of(learn),
        interval={ANY: (-0.7, 0.7)}, share=GENERAL_SHARE,
    )  # fmt: skip
    training = replace(config.training, epochs=config.general_epochs, batch=1024)

    def network_of(rows: Rows, epochs: int) -> Any:
        return train_network(
            examples_of(rows, vocabulary), size=dict(GENERAL_SIZE), config=replace(training, epochs=epochs),
            seed=config.seed,
        )  # fmt: skip

    if len(devices) >= 3 and not without:
        left_out = set(devices[1::3])
        kept = np.array([d not in left_out for d in learn.device])
        first = replace(cell, network=network_of(learn.take(np.flatnonzero(kept)), max(1, config.general_epochs // 3)))
        held = learn.take(np.flatnonzero(~kept))
        cell = replace(cell, interval=conformal(residual_of(first, held), [ANY] * len(held)))
    cell = replace(cell, network=network_of(learn, config.general_epochs))
    judged = sampled(split.test, config.general_rows // 4)
    scores = {"all": scores_of(cell, joined_rows(judged))["all"]} if judged else {"all": scores_of(cell, learn)["all"]}
    return FittedCell(cell=cell, rows=len(learn), scores=scores, seconds=time.perf_counter() - begun)


def adapt_cell(
    key: CellKey, table: OperatorTable, general: Cell, measured: Sequence[tuple[Device, Cell]]
) -> FittedCell | None:
    """Adapt the network of the family, and the cells of similar devices, to the few measurements of one device."""
    begun = time.perf_counter()
    family, setting, dtype, device = key
    alike = [(other, cell) for other, cell in measured if cell.family == family and cell.dtype == dtype]
    general = beside(general, table.devices[device], dtype, alike)
    assert general.network is not None
    order = np.arange(len(table), dtype=np.int64)
    every = Merged(rows=order, starts=np.arange(len(table) + 1, dtype=np.int64))
    rows = rows_of(family, table, every, by_setting=True)
    known = np.flatnonzero(general.knows(rows.shapes))
    if not len(known):
        return None
    rows = rows.take(known)
    examples = examples_of(rows, general.vocabulary)
    said = said_of(general, rows)
    moved, left = adapt(general.network, examples, said)
    if not np.abs(np.expm1(np.minimum(left, 50.0))).mean() < min(1.0, np.abs(np.expm1(rows.target - said)).mean()):
        return None
    low, high = np.quantile(left, [0.05, 0.95]) if len(left) >= 2 else (-0.5, 0.5)
    wide = max(0.05, 1.0 / np.sqrt(max(1, len(rows))))
    cell = replace(
        general,
        setting=setting,
        dtype=dtype,
        device=device,
        network=moved,
        interval={ANY: (float(low - wide), float(high + wide))},
    )
    scores = {"all": Score.of(left, np.zeros(len(left)), np.tile(cell.interval[ANY], (len(left), 1)))}
    curve = learning_curve(general.network, examples, said)
    return FittedCell(cell=cell, rows=len(rows), scores=scores, seconds=time.perf_counter() - begun, curve=curve)


def domain_of(rows: Rows) -> dict[str, tuple[list[float], list[float]]]:
    """The smallest and largest sizes of each operator."""
    names = np.array(rows.names, dtype=object)
    own = {name: rows.shapes.sizes[names == name] for name in sorted(set(names))}
    return {name: (sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist()) for name, sizes in own.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a fit can start from: the network of each family, and cells of measured devices."""

    general: Mapping[str, Cell]
    measured: Sequence[tuple[Device, Cell]]
