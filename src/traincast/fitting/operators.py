"""Fitting operator times: one model for each cell, one network per family for devices that nobody measured."""

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
from traincast.estimate.cells import ANY, Cell, beside
from traincast.fitting.adapt import adapt, learning_curve
from traincast.fitting.boosting import BoostingConfig, grow
from traincast.fitting.dataset import OperatorTable
from traincast.fitting.examples import CellKey, Rows, cells_of, examples_of, rows_of, table_of, vocabulary_of
from traincast.fitting.scores import Score, conformal, mape_of, residual_of, said_of, scores_of
from traincast.fitting.split import Merged, Split, carve_validation, protocol_split
from traincast.fitting.train import TrainConfig, train_network

Progress = Callable[[str], None]

HALF: Final = ("bf16", "fp16")
FEWEST: Final = 300
"""Measured operators that a cell of its own needs; fewer adapt the network of its family instead."""
SHARES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)
"""Parts of the network in the mean with the trees that validation chooses from."""
GENERAL_SHARE: Final = 0.25
"""The network's part on a device that was not measured; the rest is of the measured devices most like it."""
ENOUGH_HELD: Final = 1000
"""Validation rows that a choice and an interval need: more of them are better trained on."""
ROUNDS: Final = {"product": 400, "conv": 200, "attention": 200, "grouped": 120, "traffic": 120}
"""Trees of a large cell: what more of them gain is no longer worth their bytes and time."""
OTHER_ROUNDS: Final = 200
"""The same for products of other dtypes than bf16 and fp16, which training seldom meets."""
ROWS_PER_ROUND: Final = 50
CELL_SIZE: Final = {"body": "none", "hidden": 128, "frequencies": 4, "spread": 0.15}
GENERAL_SIZE: Final = {"width": 24, "blocks": 2, "hidden": 160, "frequencies": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """What to fit: ``networks`` are patterns of the cells that also get a network, ``general`` the families' own."""

    seed: int = 0
    networks: tuple[str, ...] = ("*",)
    general: bool = True
    general_rows: int = 2000
    general_epochs: int = 8
    boosting: BoostingConfig = field(default_factory=BoostingConfig)
    training: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCell:
    """A cell with its scores on test rows, per operator and ``all``.

    Of an adapted network, ``curve`` is the error by how many operators it was adapted to.
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
        raise RequestError("no row of the table describes an operator that a model can be fitted to")
    work = _Work(table=table, split=split, cells=cells, config=config)
    tasks: list[CellKey | str] = [*dict.fromkeys(key[0] for key in cells)] if config.general else []
    tasks += [key for key in cells if len(work.side(key, split.train)) + len(work.side(key, split.test)) >= FEWEST]
    found: dict[int, FittedCell] = {}

    def take(index: int, made: FittedCell | None) -> None:
        if made is not None:
            found[index] = made
            say(_line(made))

    (engine or local_engine(1)).run("traincast.fitting.operators:worker", work, tasks, done=take)
    fitted = [found[index] for index in sorted(found)]
    general = dict(base.general if base else {}) | {m.cell.family: m.cell for m in fitted if m.cell.device == ANY}
    fresh = {m.cell.family for m in fitted if m.cell.device == ANY}  # families that need nothing of the base
    measured = [pair for pair in (base.measured if base else []) if pair[1].family not in fresh]
    measured += [(table.devices[m.cell.device], m.cell) for m in fitted if m.cell.device != ANY]
    done = {(m.cell.family, m.cell.dtype, m.cell.device) for m in fitted}
    for key in cells:
        family, _, dtype, device = key
        if key in tasks or family not in general or (family, dtype, device) in done:
            continue
        made = adapt_cell(key, table.take(cells[key]), general[family], measured)
        if made is not None:
            fitted.append(made)
            say(_line(made))
    if not fitted:
        most = max(map(len, cells.values()))
        raise RequestError(
            f"nothing could be fitted: the largest cell has {most} operators, and {FEWEST} are needed where no network "
            "of its family can be adapted"
        )
    return fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What all tasks of a fit share: a task is a cell, or the network of a family."""

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
        """One task."""
        if isinstance(task, str):
            return fit_general(task, self.table, self.split, self.cells, self.config)
        train, test = self.side(task, self.split.train), self.side(task, self.split.test)
        return fit_cell(task, self.table, train, test, self.config)


def worker(work: _Work) -> Callable[[CellKey | str], FittedCell | None]:
    """What fits one task after another in a process of an engine."""
    return work.fit


def _line(made: FittedCell) -> str:
    score = made.scores["all"]
    return f"{made.cell.id}: {made.rows} operators, MAPE {score.mape:.2f} % (median {score.median:.2f})"


def fit_cell(key: CellKey, table: OperatorTable, train: Merged, test: Merged, config: FitConfig) -> FittedCell:
    """Trees and perhaps a network for one cell, mixed as validation rows say, with conformal intervals."""
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
    """One network for a family that reads the device from its datasheet, trained on all devices but ``without``.

    Its interval is what it misses on devices that a first training leaves out: every third of them.
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
    learn = _joined(by_cell)
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
    scores = {"all": scores_of(cell, _joined(judged))["all"]} if judged else {"all": scores_of(cell, learn)["all"]}
    return FittedCell(cell=cell, rows=len(learn), scores=scores, seconds=time.perf_counter() - begun)


def adapt_cell(
    key: CellKey, table: OperatorTable, general: Cell, measured: Sequence[tuple[Device, Cell]]
) -> FittedCell | None:
    """What is known of devices like this one, the family's network moved towards a few measurements of its own."""
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


def _joined(parts: list[Rows]) -> Rows:
    """Rows of several cells as one."""
    before = np.cumsum([0, *(len(p.shapes.details) for p in parts)])
    shapes = replace(
        parts[0].shapes,
        sizes=np.concatenate([p.shapes.sizes for p in parts]),
        passes=np.concatenate([p.shapes.passes for p in parts]),
        details=tuple(d for p in parts for d in p.shapes.details),
        which=np.concatenate([p.shapes.which + start for p, start in zip(parts, before[:-1], strict=True)]),
    )
    found = replace(
        parts[0].found,
        flat=np.concatenate([p.found.flat for p in parts]),
        tiles=np.concatenate([p.found.tiles for p in parts]),
        baseline_s=np.concatenate([p.found.baseline_s for p in parts]),
    )
    return Rows(
        shapes=shapes,
        found=found,
        seconds=np.concatenate([p.seconds for p in parts]),
        setting=[x for p in parts for x in p.setting],
        dtype=[x for p in parts for x in p.dtype],
        device=[x for p in parts for x in p.device],
        key=np.concatenate([p.key for p in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What is known before a table is fitted: networks of all devices by family, and cells of measured devices."""

    general: Mapping[str, Cell]
    measured: Sequence[tuple[Device, Cell]]
