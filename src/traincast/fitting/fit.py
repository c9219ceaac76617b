"""``fit``: fit times of operators or collectives to tables of measurements, and write them as a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.ask import paths_of, verb
from traincast.engines import local_engine
from traincast.errors import RequestError, UnknownNameError
from traincast.estimate import learned_cost_model
from traincast.estimate.bundle import check_output, save_bundle
from traincast.estimate.operators.families import FAMILIES
from traincast.fitting.ask import OPERATORS_ONLY, FitAsk, Kind, Warn
from traincast.fitting.collectives.adapt import adapt_collectives, should_adapt
from traincast.fitting.collectives.fit import HeldOutScore, compare_collectives, fit_collectives
from traincast.fitting.collectives.prior import fit_prior
from traincast.fitting.collectives.table import CollectiveTable, read_collectives
from traincast.fitting.rows.dataset import OperatorTable, filters, joined, read_operators

if TYPE_CHECKING:
    from traincast.fitting.operators.fit import FittedCell
    from traincast.fitting.operators.rivals import RivalScore

_DEVICES_OF_A_NETWORK = 3
"""With at least this many measured devices, a network for unmeasured devices is fitted as well."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """The result of a fit: the bundle that was written, and its errors on measurements held out.

    Operators have ``cells``, one model per family, setting, dtype and device; collectives have ``held_out``, the
    errors on configurations that were not fitted. ``rivals`` are the scores of other models where they were asked
    for, ``left_out`` says which rows were not used and why. ``adapted`` says what a bundle of collectives was adapted
    to, if the table was too small for curves of its own.
    """

    kind: Kind
    bundle: Path
    cells: Sequence[FittedCell] = ()
    held_out: Mapping[str, float] = field(default_factory=dict)
    rivals: Sequence[RivalScore | HeldOutScore] = ()
    left_out: Sequence[str] = ()
    adapted: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``traincast fit --json`` prints."""
        cells = [
            {
                "cell": made.cell.id,
                "rows": made.rows,
                "network_share": made.cell.share,
                "train_s": made.seconds,
                "scores": {name: asdict(score) for name, score in made.scores.items()},
                "curve": made.curve,
            }
            for made in self.cells
        ]
        learned = {"held_out": self.held_out, "adapted": self.adapted}
        result = {"cells": cells} if self.kind == "operators" else learned
        rivals = [asdict(rival) for rival in self.rivals]
        return {"bundle": str(self.bundle), **result, "rivals": rivals, "left_out": list(self.left_out)}


@verb(FitAsk)
def fit(ask: FitAsk) -> Fit:
    """Fit times to tables of measurements (``.parquet``, ``.csv`` or ``.csv.gz``), and write the bundle ``output``.

    ``kind`` says what the tables hold. Equal tables, seed and library versions give the same bundle. ``rivals`` also
    fits other models and scores each.

    For operators only: ``networks`` are patterns of the cells that also try a network (``("attention/*",)``; ``None``
    is all, ``()`` none), ``only`` are patterns of the cells to fit (``None`` is all), ``keep`` is a bundle whose other
    cells the new one holds as they are, ``epochs`` those of each network, ``where`` keeps rows with these values
    (``{"device": ["A100"]}``), and ``workers`` is the number of processes. They are refused for collectives, which
    take one table.

    For collectives only: ``adapt`` says whether to adapt the shipped collectives to the points of one system instead of
    fitting curves; by default, this is done for a table of at most 40 configurations of one GPU system. ``prior`` names
    tables of many systems, from which the bundle learns what to expect of systems that nobody measured.

    >>> from traincast import fit
    >>> fit("mine.parquet", output="mine.bundle", networks=()).cells[0].scores["all"].mape  # doctest: +SKIP
    4.7
    """
    paths, target = paths_of(ask.tables), Path(ask.output)
    if ask.kind == "collectives":
        wrong = [name for name in OPERATORS_ONLY if getattr(ask, name) is not None]
        if wrong or len(paths) != 1:
            what = ", ".join(wrong) or f"{len(paths)} tables"
            raise RequestError(f"{what}: collectives are fitted to one table, and by one process, as a whole")
        return _fit_collectives(paths[0], target, ask)
    if ask.kind != "operators":
        raise UnknownNameError("kind of measurements", ask.kind, ("operators", "collectives"))
    if ask.adapt is not None or ask.prior:
        raise RequestError("adapt and prior apply to collectives only")
    if ask.keep is not None and ask.only is None:
        raise RequestError("a fit keeps cells of another bundle only where it says which cells it fits: give only")
    from traincast.fitting.operators.bundle import base_of, bundle_of, kept_cells
    from traincast.fitting.operators.fit import FitConfig, fit_operators
    from traincast.fitting.train import TrainConfig

    check_output(target)
    kept = kept_cells(Path(ask.keep), ask.only or ()) if ask.keep is not None else None
    chosen = kept.only if kept else tuple(ask.only or ("*",))
    table = _read_operators(paths, ask.where or {}, chosen)
    left_out = _told(table, ask.warn)
    config = FitConfig(
        seed=ask.seed,
        only=chosen,
        networks=("*",) if ask.networks is None else tuple(ask.networks),
        general=len(table.devices) >= _DEVICES_OF_A_NETWORK,
        training=TrainConfig() if ask.epochs is None else TrainConfig(epochs=ask.epochs),
    )
    base = base_of(Path(ask.keep)) if ask.keep is not None else base_of()
    cells = fit_operators(table, config, base=base, engine=local_engine(ask.workers or 1), progress=ask.progress)
    card, arrays = bundle_of(cells, table, data=_about(paths, table), config=config, kept=kept)
    save_bundle(target, card, arrays)
    scores: list[RivalScore] = []
    if ask.rivals:
        from traincast.fitting.operators.rivals import Budget, compare_cells

        budget = Budget() if ask.epochs is None else Budget(epochs=ask.epochs)
        scores = compare_cells(table, seed=ask.seed, budget=budget, progress=ask.progress)
    return Fit(kind=ask.kind, bundle=target, cells=cells, rivals=scores, left_out=left_out)


def _fit_collectives(path: Path, target: Path, ask: FitAsk) -> Fit:
    prior, seed, adapt, rivals = [Path(more) for more in ask.prior], ask.seed, ask.adapt, ask.rivals
    if adapt and (rivals or prior):
        raise RequestError("an adapted bundle has no rivals and no prior of its own: leave out rivals and prior")
    check_output(target)
    table, others = read_collectives(path), [read_collectives(more) for more in prior]
    left_out = _told(table, ask.warn)
    base = None if adapt is False or rivals or prior else next(iter(learned_cost_model().collectives), None)
    adapts = base is not None and (adapt or should_adapt(table, base))
    if adapts and base is not None:
        weights, model = adapt_collectives(table, base)
    else:
        weights, model = fit_collectives(table, seed=seed)
    about = _about([path, *prior], table)
    if prior:
        arrays, model["prior"] = fit_prior([table, *others]).packed()
        weights |= arrays
        about["sources"] = sorted({*about["sources"], *(source for more in others for source in more.source)})
    save_bundle(target, {"kind": "collectives", "data": about, "seed": seed, "model": model}, weights)
    scores = compare_collectives(table, seed=seed) if rivals else []
    return Fit(
        kind="collectives",
        bundle=target,
        held_out=model["held_out"],
        rivals=scores,
        left_out=left_out,
        adapted=model["adapted"]["says"] if adapts else "",
    )


def _read_operators(paths: Sequence[Path], where: Mapping[str, Collection[str]], only: Sequence[str]) -> OperatorTable:
    """Read and join tables of operators of the families that ``only`` names; refuse them if no row is left."""
    patterns = [pattern.partition("/")[0] for pattern in only]
    families = [name for name in FAMILIES if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not families:
        raise RequestError(f"no family matches {', '.join(only)}: families are {', '.join(FAMILIES)}")
    table = joined([read_operators(path, derive=True, families=families, **filters(where)) for path in paths])
    if not len(table):
        reasons = "; ".join(table.problems_summary()[:2]) or "it has no rows"
        raise RequestError(f"nothing to fit in {', '.join(map(str, paths))}: {reasons}")
    return table


def _told(table: OperatorTable | CollectiveTable, warn: Warn | None) -> list[str]:
    """Return the sentences on rows that are left out, after a call of ``warn`` with them."""
    lines = table.problems_summary()
    if warn is not None and lines:
        warn(lines)
    return lines


def _about(paths: Sequence[Path], table: OperatorTable | CollectiveTable) -> dict[str, Any]:
    """Return what the card of a bundle says of its data."""
    return {
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths},
        "rows": len(table),
        "left_out": len(table.problems),
        "sources": sorted(set(table.source.tolist())),
    }
