"""What a comparison of a run with its forecast found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_MOST_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """Start, end and busy time of one class of spans on one device in a step, in seconds, and the number of spans."""

    start_s: float
    end_s: float
    busy_s: float
    spans: float

    def to_dict(self) -> dict[str, float]:
        """Return the figures as JSON shows them."""
        return {"start_s": self.start_s, "end_s": self.end_s, "busy_s": self.busy_s, "spans": self.spans}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassActivity:
    """One class of spans on one device: measured and predicted.

    ``compared`` names the figures that count. ``noise`` is the error that a single measured step has against the mean
    of all steps. ``span_shift`` is the mean shift of single spans matched by order, ``None`` if their numbers differ.
    Errors, noise and shift are shares of the measured step ``step_s``.
    """

    name: str
    measured: ClassFigures | None
    predicted: ClassFigures | None
    step_s: float
    compared: tuple[str, ...] = ("start", "end", "busy")
    noise: float = 0.0
    span_shift: float | None = None

    @property
    def errors(self) -> dict[str, float]:
        """The signed error of each compared figure; ``missing`` if only one side has the class."""
        if self.measured is None or self.predicted is None:
            there = self.measured or self.predicted
            assert there is not None, "a class of spans exists on one side at least"
            return {"missing": (there.busy_s if self.measured is None else -there.busy_s) / self.step_s}
        return {
            figure: (getattr(self.predicted, f"{figure}_s") - getattr(self.measured, f"{figure}_s")) / self.step_s
            for figure in self.compared
        }

    @property
    def error(self) -> float:
        """The mean of the absolute errors of the figures."""
        errors = self.errors.values()
        return sum(abs(error) for error in errors) / len(errors)

    def to_dict(self) -> dict[str, Any]:
        """Return the class as JSON shows it."""
        return {
            "class": self.name,
            "measured": self.measured.to_dict() if self.measured else None,
            "predicted": self.predicted.to_dict() if self.predicted else None,
            "errors": self.errors,
            "error": self.error,
            "noise": self.noise,
            "span_shift": self.span_shift,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActivity:
    """The activities of one device; ranks after those of the workers are parameter servers.

    ``measured_idle_s`` and ``predicted_idle_s`` are the seconds of a step in which the device neither computes nor
    communicates; ``None`` if steps have no common start.
    """

    rank: int
    classes: tuple[ClassActivity, ...]
    measured_idle_s: float | None = None
    predicted_idle_s: float | None = None

    @property
    def error(self) -> float:
        """The mean error of the classes, as a share of the measured step."""
        return _mean([each.error for each in self.classes])

    @property
    def noise(self) -> float:
        """The mean noise of the classes, as a share of the measured step."""
        return _mean([each.noise for each in self.classes])

    @property
    def span_shift(self) -> float | None:
        """The mean shift of the classes whose spans could be matched; ``None`` if there are none."""
        known = [each.span_shift for each in self.classes if each.span_shift is not None]
        return _mean(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the device as JSON shows it."""
        return {
            "rank": self.rank,
            "error": self.error,
            "noise": self.noise,
            "span_shift": self.span_shift,
            "measured_idle_s": self.measured_idle_s,
            "predicted_idle_s": self.predicted_idle_s,
            "classes": [each.to_dict() for each in self.classes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One figure of one class on one device; ``error`` is signed, as a share of the measured step."""

    rank: int
    name: str
    figure: str
    measured_s: float | None
    predicted_s: float | None
    error: float
    noise: float

    def to_dict(self) -> dict[str, Any]:
        """Return the disagreement as JSON shows it."""
        return {
            "rank": self.rank,
            "class": self.name,
            "figure": self.figure,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "error": self.error,
            "noise": self.noise,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run and its forecast side by side.

    ``repeat_cv`` is the spread of the measured steps relative to their mean, ``lost_share`` the share of a step that
    hosts cost their emulated devices. ``cannot_carry`` says why this machine could not carry the run, if it could not:
    then errors say nothing about the forecast.
    """

    model: str
    strategy: str
    num_ranks: int
    compute: str
    network: str
    measured_s: float
    predicted_s: float
    num_steps: int
    repeat_cv: float
    by_device: tuple[DeviceActivity, ...]
    events: str | None = None
    estimated_by: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    lost_share: float = 0.0
    cannot_carry: str = ""

    @property
    def noise(self) -> float:
        """The machine's own noise, relative to the measured step: the spread of the steps, and what hosts cost."""
        return self.repeat_cv + self.lost_share

    @property
    def batch_error(self) -> float:
        """The signed error of the step time, relative to the measured one."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def activity_error(self) -> float:
        """The mean error of the devices' activities, as a share of the measured step."""
        return _mean([device.error for device in self.by_device])

    @property
    def activity_noise(self) -> float:
        """The activity error that one measured step has against the mean of all."""
        return _mean([device.noise for device in self.by_device])

    @property
    def span_shift(self) -> float | None:
        """The mean shift of single spans matched by order; ``None`` if no device's spans could be matched."""
        known = [device.span_shift for device in self.by_device if device.span_shift is not None]
        return _mean(known) if known else None

    @property
    def worst(self) -> tuple[Disagreement, ...]:
        """The largest disagreements of single figures, the largest first."""
        found = [
            Disagreement(
                rank=device.rank,
                name=each.name,
                figure=figure,
                measured_s=_value(each.measured, figure),
                predicted_s=_value(each.predicted, figure),
                error=error,
                noise=each.noise,
            )
            for device in self.by_device
            for each in device.classes
            for figure, error in each.errors.items()
        ]
        return tuple(sorted(found, key=lambda one: -abs(one.error))[:_MOST_WORST])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON shows it; errors are ``None`` if the machine could not carry the run."""
        carried = not self.cannot_carry
        return {
            "model": self.model,
            "strategy": self.strategy,
            "num_ranks": self.num_ranks,
            "compute": self.compute,
            "network": self.network,
            "events": self.events,
            "estimated_by": self.estimated_by,
            "num_steps": self.num_steps,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "cannot_carry": self.cannot_carry,
            "batch_error": self.batch_error if carried else None,
            "noise": self.noise,
            "repeat_cv": self.repeat_cv,
            "lost_share": self.lost_share,
            "activity_error": self.activity_error if carried else None,
            "activity_noise": self.activity_noise,
            "span_shift": self.span_shift,
            "by_device": [device.to_dict() for device in self.by_device],
            "worst": [one.to_dict() for one in self.worst],
            "warnings": list(self.warnings),
        }


def _value(figures: ClassFigures | None, figure: str) -> float | None:
    if figures is None:
        return None
    return figures.busy_s if figure == "missing" else float(getattr(figures, f"{figure}_s"))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
