"""The clock that all processes of a machine share."""

from __future__ import annotations

import time
from typing import Final

now: Final = time.monotonic
"""Seconds since some moment that is the same for all processes of this machine."""


def sleep_until(when: float) -> None:
    """Returns at ``when``, or at once if it has passed."""
    ahead = when - now()
    if ahead > 0.0:
        time.sleep(ahead)
