"""Stand-ins: models of the zoo that replace the models named by a public log, so that its jobs can be forecast.

A table is a TOML file with ``about``, ``batch_per_gpu``, ``precision`` and ``runtime``. With ``batch_per_gpu``, the
batch of a job is that of one GPU, and its steps are summed over its GPUs. For each model of the log it has
``[models."NAME"]`` with ``model`` (as `predict` takes it), ``likeness`` (same, alike or flops), ``note``, ``batch``
(for jobs that state none) and ``samples`` (samples of the stand-in for each sample of the job). ``host_sample_s`` is
the time in which the training process itself prepares one sample, while its GPU waits. ``refused`` is the reason why
jobs of that model cannot be forecast; they then count as typical ones. Traincast's own tables are in
``scheduling/standins``; a user's table is given by its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from traincast.errors import FileFormatError, UnknownNameError
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.joblogs.table import Floats, jobs
from traincast.schema import Text, convert, read_table, read_toml, table_of

Likeness: TypeAlias = Literal["same", "alike", "flops"]
_Batch: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
_Samples: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e3, description="seconds")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A model of the zoo that replaces one of a log, and the host's share of its time."""

    model: Text
    likeness: Likeness = "same"
    note: str = ""
    batch: _Batch = 0
    samples: _Samples = 1.0
    host_sample_s: _Seconds = 0.0
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Stand-ins by the names of models in a log, and how the log's jobs were run."""

    name: str
    about: str
    models: Mapping[str, StandIn]
    batch_per_gpu: bool = False
    precision: str | None = None
    runtime: str | None = None

    def described(self, log: JobLog) -> JobLog:
        """Return the log with stand-ins as models, and with batches and steps counted over all GPUs of a job."""
        found = self._of(log)
        gpus = self._gpus(log)
        samples = np.array([one.samples for one in found], dtype=np.float64)
        batch = self._batch(log, found)
        return log.with_columns(
            numbers={"batch": np.round(batch * gpus * samples), "steps": log.numbers["steps"] / gpus},
            texts={"model": np.array([one.model for one in found], dtype=object)},
        )

    def host_seconds(self, log: JobLog) -> Floats:
        """Return the seconds in which the hosts of each job prepare its samples while its GPUs wait.

        Every GPU has its own process, which prepares its part of the batch.
        """
        found = self._of(log)
        each = np.array([one.host_sample_s for one in found], dtype=np.float64)
        parts = 1.0 if self.batch_per_gpu else np.maximum(1.0, log.numbers["num_gpus"])
        seconds: Floats = log.numbers["steps"] / self._gpus(log) * self._batch(log, found) / parts * each
        return seconds

    def refusals(self, log: JobLog) -> list[str]:
        """Return for each job why it cannot be forecast; "" if it can."""
        return [one.refused for one in self._of(log)]

    def _of(self, log: JobLog) -> list[StandIn]:
        """Return the stand-in of each job; a log with a model that has none is refused."""
        names = log.texts["model"].tolist()
        unknown = sorted({name for name in names if name not in self.models})
        if unknown:
            first = names.index(unknown[0])
            raise FileFormatError(
                f"{log.path}: {log.where(first)} has the model {unknown[0]!r}, for which the stand-ins {self.name} "
                f"have nothing ({jobs(sum(name in unknown for name in names))} in all): known are "
                f"{', '.join(sorted(self.models))}"
            )
        return [self.models[name] for name in names]

    def _gpus(self, log: JobLog) -> Floats:
        """Return by how many GPUs the steps of each job are divided."""
        return np.maximum(1.0, log.numbers["num_gpus"]) if self.batch_per_gpu else np.ones(len(log))

    def _batch(self, log: JobLog, found: Sequence[StandIn]) -> Floats:
        """Return the batch that each job states, or the usual one of its model."""
        usual = np.array([one.batch for one in found], dtype=np.float64)
        return np.where(log.numbers["batch"] > 0, log.numbers["batch"], usual)


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
