"""What ``monitor`` returns: the readings of a sampler, and the figures computed from them.

The sampler belongs to ``profiling`` and the figures to ``resources``, which do not know each other. Both meet here.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.ask import verb
from traincast.cli.resources.ask import MonitorAsk
from traincast.errors import FileFormatError, RequestError
from traincast.estimate.resource_use import RESOURCES
from traincast.files import check_outputs, write_text

if TYPE_CHECKING:
    from traincast.profiling.monitor.sample import Monitored
    from traincast.resources.sampled import MonitoredUse

LEAST_HZ: Final = 10.0
MOST_HZ: Final = 100.0
_MISSED: Final = 0.05
"""Share of moments without a reading above which a warning says so."""
_OWN_CSV: Final = "time_s,processor_s,"
_OWN_PAGE: Final = '<main id="page" class="sampled">'


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredRun:
    """A command or a process that was sampled.

    ``readings`` are what the sampler read. ``used`` are the figures: ``used.uses["compute"].burst_s``. It is ``None``
    if the command ended within one sampling period.
    """

    command: str
    readings: Monitored
    used: MonitoredUse | None
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of the command; 128 + n if signal n ended it, and 0 of a process that somebody else started."""
        return self.readings.exit_code

    def to_dict(self) -> dict[str, Any]:
        """What was sampled and what was found as plain values, as the JSON of ``traincast monitor`` has them."""
        columns, used = self.readings.columns, self.used
        return {
            "command": self.command,
            "seconds": columns["time_s"][-1] - columns["time_s"][0],
            "samples": self.readings.samples,
            "missed": self.readings.missed,
            "exit_code": self.exit_code,
            "processor_s": columns["processor_s"][-1] - columns["processor_s"][0],
            "peak_resident_bytes": max(columns["resident_bytes"]),
            "processes": int(max(columns["processes"])),
            "devices": int(max(columns["devices"])),
            "resources": used.to_dict() if used else dict.fromkeys(RESOURCES),
            "counted": used.counted if used else {},
            "peaks": used.peaks if used else {},
            "sampler_cpu_share": self.readings.sampler_cpu_share,
            "warnings": list(self.warnings),
        }

    def write_readings(self, path: Path | str) -> None:
        """Write the readings as CSV, with times since the first."""
        first = self.readings.columns["time_s"][0]
        columns = {**self.readings.columns, "time_s": [time - first for time in self.readings.columns["time_s"]]}
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
        write_text(Path(path), "\n".join(lines) + "\n")

    def write_page(self, path: Path | str) -> None:
        """Write a self-contained page with the use over time; refuses if there is none to draw."""
        from traincast.resources.sampled_page import monitored_page

        if self.used is None:
            raise RequestError(f"no page written to {path}: {self.warnings[0]}")
        write_text(Path(path), monitored_page(self.used, self.readings.columns, self.to_dict()))


@verb(MonitorAsk)
def monitor(ask: MonitorAsk) -> MonitoredRun:
    """Run ``command`` and sample it ``hz`` times a second until it ends, or sample the process ``pid``.

    Sampling stops after ``for_s`` seconds at the latest. Network amounts are shares of ``link_rate``, such as
    ``"1Gbit"``; without it, of the rate that the system tells, or of the highest rate seen. The command has this
    process's standard input and outputs; if ``quiet``, what it writes to standard output goes to standard error. A
    command that fails is no error: its ``exit_code`` is that of the result. Linux only.
    """
    hz, link_rate, command = ask.hz, ask.link_rate, ask.command
    if not LEAST_HZ <= hz <= MOST_HZ:
        raise RequestError(f"--hz {hz:g}: expected {LEAST_HZ:g} to {MOST_HZ:g} samples per second")
    from traincast.profiling.monitor.network import link_rate as detected
    from traincast.profiling.monitor.sample import monitor as sample
    from traincast.resources.sampled import use_of_command
    from traincast.testbed.request import rate_of

    rate = detected() if link_rate is None else rate_of(link_rate, "--link-rate")
    if rate is not None and not math.isfinite(rate):
        raise RequestError(f"--link-rate {link_rate}: that is no rate; give one such as 1Gbit, or leave it out")
    found = sample(command, pid=ask.pid, hz=hz, quiet=ask.quiet, for_s=ask.for_s)
    used: MonitoredUse | None = None
    warnings: list[str] = []
    try:
        used = use_of_command(found.columns, hz=hz, cores=found.cores, link_rate=rate)
        warnings += used.warnings
    except RequestError as error:  # too short to tell anything; the command has run all the same
        warnings.append(str(error))
    if found.missed > _MISSED * found.samples:
        warnings.append(
            f"{found.missed} of {found.missed + found.samples} readings were left out: the machine is too busy to "
            "sample that often"
        )
    return MonitoredRun(
        command=" ".join(command) if command else f"process {ask.pid}",
        readings=found,
        used=used,
        warnings=tuple(warnings),
    )


def check_monitor_outputs(outputs: Mapping[str, Path], command: Sequence[str]) -> None:
    """Refuse outputs, by option, that are files of the ``command`` or that a monitor has not written.

    ``monitor -o train.py -- python train.py`` would replace the script by its readings.
    """
    check_outputs(outputs, inputs=_files_of(command))
    for option, path in outputs.items():
        if path.is_file() and not _written_by_monitor(path, _OWN_PAGE if option == "--html" else _OWN_CSV):
            raise FileFormatError(
                f"{option} {path}: the file exists and was not written by a monitor; choose another name, or remove it"
            )


def _files_of(command: Sequence[str]) -> dict[str, Path]:
    """The files that the words of a command name, also as ``--option=FILE``."""
    found = {}
    for word in (*command, *(shutil.which(word) or "" for word in command[:1])):
        for text in (word, word.partition("=")[2]):
            with suppress(OSError, ValueError):  # code, or whatever cannot be a name
                if text and Path(text).is_file():
                    found[f"{text!r} of the command"] = Path(text)
    return found


def _written_by_monitor(path: Path, mark: str) -> bool:
    """Whether a file is empty or has the ``mark`` of a monitor's output."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return not text or (text.startswith(mark) if mark == _OWN_CSV else mark in text)
