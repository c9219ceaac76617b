"""The probability distribution of a step's time around its forecast.

The logarithm of a step's time has an asymmetric Laplace distribution: its density falls exponentially on both sides of
the median, so that one run in twenty is below the 90 % interval and one in twenty above it. Errors of forecasts have
longer tails and more runs near the middle than a normal distribution; the page on search compares the odds with
measured runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

UNCALIBRATED_MEDIAN: Final = 1.08
"""The median run on a cluster that is not calibrated takes this multiple of its forecast.

This is the median over published runs, forecast without calibration; every source has the same weight. Without any one
source it is 1.07 to 1.09.
"""
_TENTH: Final = math.log(10.0)
"""Half of all runs are on one side of the median and one in twenty beyond the interval: a tenth of that half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """The median of a step's time and the ends of its 90 % interval, in seconds."""

    median_s: float
    low_s: float
    high_s: float

    def chance(self, seconds: float) -> float:
        """Return the probability that a step takes at most ``seconds``."""
        if seconds <= 0.0:
            return 0.0
        away = math.log(seconds / self.median_s)
        beyond = 0.5 * math.exp(-_TENTH * abs(away) / self._side(away))
        return beyond if away < 0.0 else 1.0 - beyond

    def quantile(self, chance: float) -> float:
        """Return the seconds that a step does not exceed with probability ``chance``, between 0 and 1."""
        away = chance - 0.5
        beyond = 2.0 * min(chance, 1.0 - chance)
        return self.median_s * math.exp(math.copysign(self._side(away) * -math.log(beyond) / _TENTH, away))

    def _side(self, away: float) -> float:
        """Return the logarithm of the ratio between the median and the end of the interval on one side."""
        end = self.median_s / self.low_s if away < 0.0 else self.high_s / self.median_s
        return max(math.log(max(end, 1.0)), 1e-9)


def odds(step_s: float, low_s: float, high_s: float, *, calibrated: bool) -> Odds:
    """Return the odds of a step with the forecast ``step_s`` and the 90 % interval from ``low_s`` to ``high_s``."""
    return Odds(median_s=step_s * (1.0 if calibrated else UNCALIBRATED_MEDIAN), low_s=low_s, high_s=high_s)
