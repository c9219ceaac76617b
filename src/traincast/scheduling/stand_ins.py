"""Stand-ins: models of the zoo that replace the models named by a public trace, so that its jobs can be forecast.

A table is a TOML file with ``about``, ``batch_per_gpu``, ``precision`` and ``runtime``. With ``batch_per_gpu``, the
batch of a job is that of one GPU, and its steps are summed over its GPUs. For each model of the trace it has
``[models."NAME"]`` with ``model`` (as `predict` takes it), ``likeness`` (same, alike or flops), ``note``, ``batch``
(for jobs that state none) and ``samples`` (samples of the stand-in for each sample of the job). Traincast's own tables
are in ``scheduling/standins``; a user's table is given by its path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.errors import FileFormatError, UnknownNameError
from traincast.scheduling.formats.table import jobs
from traincast.scheduling.traces import Trace

LIKENESS: Final = ("same", "alike", "flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A model of the zoo that replaces one of a trace."""

    model: str
    likeness: str = "same"
    note: str = ""
    batch: int = 0
    samples: float = 1.0


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
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{name} cannot be read: {error}; give a TOML file of stand-ins") from error
    elif name in stand_in_names():
        text = resources.files("traincast.scheduling").joinpath(f"standins/{name}.toml").read_text(encoding="utf-8")
    else:
        raise UnknownNameError("table of stand-ins", name, stand_in_names(), hint="or give the path of a .toml file")
    try:
        return _built(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{name} is not valid TOML: {error}; correct it") from error


_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "model": (str,), "likeness": (str,), "note": (str,), "batch": (int,), "samples": (int, float),
}  # fmt: skip


def _built(name: str, table: Mapping[str, Any]) -> StandIns:
    models = table.get("models")
    if not isinstance(models, dict) or not models:
        raise FileFormatError(f'{name} has no stand-ins: add tables [models."NAME"] with model = "…"')
    found: dict[str, StandIn] = {}
    for of, values in models.items():
        if not isinstance(values, dict) or "model" not in values:
            raise FileFormatError(f"{name}: [models.{of!r}] lacks model: name one of the zoo")
        for key, value in values.items():
            if key not in _FIELDS or not isinstance(value, _FIELDS[key]) or isinstance(value, bool):
                raise FileFormatError(f"{name}: [models.{of!r}] has {key} = {value!r}: expected {', '.join(_FIELDS)}")
        found[of] = StandIn(**values)
        if found[of].likeness not in LIKENESS or not found[of].samples > 0 or found[of].batch < 0:
            raise FileFormatError(
                f"{name}: [models.{of!r}] has likeness {found[of].likeness}, samples {found[of].samples} and batch "
                f"{found[of].batch}: expected {' or '.join(LIKENESS)}, and numbers above 0"
            )
    others = {"about": str, "batch_per_gpu": bool, "precision": str, "runtime": str}
    for key, value in table.items():
        if key != "models" and not (key in others and isinstance(value, others[key])):
            raise FileFormatError(f"{name} has {key} = {value!r}: expected {', '.join(others)} and models")
    return StandIns(
        name=name,
        about=table.get("about", ""),
        models=found,
        batch_per_gpu=table.get("batch_per_gpu", False),
        precision=table.get("precision"),
        runtime=table.get("runtime"),
    )
