"""What ``fit resources`` and ``resources simulate`` are asked: tables to train an inspector on, and runs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from traincast.ask import File, JsonRecord, Live, Option, Progress, Seed, python_only
from traincast.fitting.ask import BUNDLE, RIVALS, Epochs, Warn

if TYPE_CHECKING:
    from traincast.engines import Engine
    from traincast.estimate.inspector.evaluate import InspectorShape
    from traincast.estimate.inspector.grouping import Grouping
    from traincast.fitting.inspector.train import InspectorTraining
else:
    Engine = InspectorTraining = InspectorShape = Grouping = object


@dataclass(frozen=True, slots=True)
class ResourceFitAsk(JsonRecord):
    """What ``fit resources`` is asked: tables of runs, and the bundle to write."""

    tables: Annotated[Sequence[File], Option("Tables of runs (.csv or .csv.gz).", "FILE…")]
    _: KW_ONLY
    output: Annotated[File, BUNDLE]
    start: Annotated[
        File | None,
        Option(
            "Adapt the inspector in BUNDLE (or `shipped`) to the setting of FILE: half of its repeated layers and its "
            "head are trained.",
            "BUNDLE",
            flag="--from",
        ),
    ] = None
    grouping: Annotated[Grouping | None, Live(), python_only("How operators are grouped.")] = None
    shape: Annotated[InspectorShape | None, Live(), python_only("The sizes of the network.")] = None
    config: Annotated[InspectorTraining | None, Live(), python_only("How the network is trained.")] = None
    rivals: Annotated[bool, RIVALS] = False
    warn: Annotated[
        Warn | None, Live(), python_only("Called with the sentences on rows that are left out, before the fit.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorSettings:
    """How an inspector groups operators and is trained, in words; what is None is left to the fit."""

    method: Annotated[
        str | None,
        Option(
            "How operators are grouped: proportional (to the size of the graph), uniform or none. Default: "
            "proportional.",
            "NAME",
            flag="--grouping",
        ),
    ] = None
    groups: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | None,
        Option("Groups of each graph, if they are uniform.", "M", flag="--num-groups"),
    ] = None
    factor: Annotated[
        float | None,
        Option("With `proportional`, a graph of n operators has F × log10(n) groups. Default: 4.", "F"),
    ] = None
    epochs: Annotated[Epochs | None, Option("Train each network for N epochs. Default: 60.", "N")] = None
    members: Annotated[
        int,
        Meta(ge=1, le=20),
        Option(
            "Train N networks from different first weights, and average them. With --from: as many as BUNDLE has.", "N"
        ),
    ] = 3
    seed: Annotated[
        Seed, Option("Seed of the random numbers. The held-out models and the training depend on it.", "N")
    ] = 0


@dataclass(frozen=True, slots=True)
class SimulateAsk(JsonRecord):
    """What ``resources simulate`` is asked: which runs are drawn, and the table to write."""

    output: Annotated[File, Option("Write to PATH: the table, a .csv or .csv.gz file.", "PATH", short="-o")]
    _: KW_ONLY
    runs: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        Option("Number of runs to draw. Those that fit no memory, or that a rule forbids, are left out.", "N"),
    ] = 3000
    seed: Annotated[Seed, Option("Seed of the random numbers. The drawn runs depend on it.", "N")] = 0
    models: Annotated[Sequence[str], Option("Draw only MODEL.", "MODEL", flag="--model")] = ()
    engine: Annotated[Engine | None, Live(), python_only("Where the workers run, from load_engine.")] = None
    progress: Annotated[Progress | None, Live(), python_only("Called with the number of finished runs and of all.")] = (
        None
    )
