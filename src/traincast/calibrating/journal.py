"""Finished stages of a calibration, kept beside its output, so that one that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from traincast import __version__
from traincast.calibrating.parameters import NAMES
from traincast.calibrating.runs import MeasuredRun
from traincast.files import write_text


class CalibrationJournal:
    """Stages by name, as plain values; those of other runs or another version are not used."""

    def __init__(self, path: Path | None, runs: Sequence[MeasuredRun]) -> None:
        said = [
            (m.index, m.seconds, m.request.graph.name, m.request.cluster.name, str(m.request.strategy))
            for m in (run.measured for run in runs)
        ]
        self._key = hashlib.sha256(repr((__version__, NAMES, said)).encode()).hexdigest()
        self._path = path
        self._stages: dict[str, Any] = self._read(path) if path is not None and path.is_file() else {}

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return dict(document["stages"]) if document["key"] == self._key else {}
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            return {}

    def stage(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or returned when this was last done."""
        if name not in self._stages:
            self._stages[name] = make()
            if self._path is not None:
                write_text(self._path, json.dumps({"key": self._key, "stages": self._stages}))
        return self._stages[name]

    def done(self) -> None:
        """Nothing is left to go on with."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
