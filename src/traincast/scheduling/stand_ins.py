"""Stand-ins: models of the zoo that replace the models named by a public trace, so that its jobs can be forecast.

A table is a TOML file with ``about``, ``batch_per_gpu``, ``precision`` and ``runtime``. With ``batch_per_gpu``, the
batch of a job is that of one GPU, and its steps are summed over its GPUs. For each model of the trace it has
``[models."NAME"]`` with ``model`` (as `predict` takes it), ``likeness`` (same, alike or flops), ``note``, ``batch``
(for jobs that state none) and ``samples`` (samples of the stand-in for each sample of the job). Traincast's own tables
are in ``scheduling/standins``; a user's table is given by its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from traincast.errors import FileFormatError, UnknownNameError
from traincast.scheduling.formats.table import jobs
from traincast.scheduling.traces import Trace
from traincast.schema import Text, convert, read_table, read_toml, table_of

Likeness: TypeAlias = Literal["same", "alike", "flops"]
_Batch: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
_Samples: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A model of the zoo that replaces one of a trace."""

    model: Text
    likeness: Likeness = "same"
    note: str = ""
    batch: _Batch = 0
    samples: _Samples = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Stand-ins by the names of models in a trace, and how the trace's jobs were run."""

    name: str
    about: str
    models: Mapping[str, StandIn]
    batch_per_gpu: bool = False
    precision: str | None = None
    runtime: str | None = None

    def described(self, trace: Trace) -> Trace:
        """Return the trace with stand-ins as models, and with batches and steps counted over all GPUs of a job."""
        names = trace.texts["model"].tolist()
        unknown = sorted({name for name in names if name not in self.models})
        if unknown:
            first = names.index(unknown[0])
            raise FileFormatError(
                f"{trace.path}: {trace.where(first)} has the model {unknown[0]!r}, for which the stand-ins {self.name} "
                f"have nothing ({jobs(sum(name in unknown for name in names))} in all): known are "
                f"{', '.join(sorted(self.models))}"
            )
        found = [self.models[name] for name in names]
        gpus = np.maximum(1.0, trace.numbers["num_gpus"]) if self.batch_per_gpu else np.ones(len(trace))
        usual = np.array([one.batch for one in found], dtype=np.float64)
        samples = np.array([one.samples for one in found], dtype=np.float64)
        batch = np.where(trace.numbers["batch"] > 0, trace.numbers["batch"], usual)
        return trace.with_columns(
            numbers={"batch": np.round(batch * gpus * samples), "steps": trace.numbers["steps"] / gpus},
            texts={"model": np.array([one.model for one in found], dtype=object)},
        )


def stand_in_names() -> tuple[str, ...]:
    """Return the names of the tables that ship with Traincast."""
    folder = resources.files("traincast.scheduling").joinpath("standins")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_stand_ins(name: str) -> StandIns:
    """Return the shipped table of that name, or the table in the TOML file at that path."""
    if name.endswith(".toml"):
        path = Path(name)
    elif name in stand_in_names():
        path = Path(str(resources.files("traincast.scheduling").joinpath(f"standins/{name}.toml")))
    else:
        raise UnknownNameError("table of stand-ins", name, stand_in_names(), hint="or give the path of a .toml file")
    kind = table_of(StandIns, without=("name", "models"), models=Mapping[str, Any])
    table = read_table(read_toml(path, "table of stand-ins"), kind, f"{path.name}:")
    models = {
        model: _stand_in(values, f'{path.name}: [models."{model}"]')
        for model, values in table.pop("models", {}).items()
    }
    if not models:
        raise FileFormatError(f'{name} has no stand-ins: add tables [models."NAME"] with model = "…"')
    return StandIns(**{"about": "", **table}, name=name, models=models)


def _stand_in(values: object, where: str) -> StandIn:
    read_table(values, table_of(StandIn), where)
    return convert(values, StandIn, where, remedy="name a model of the zoo")
