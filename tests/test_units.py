"""Units are read as people write them, and what is none is refused."""

from __future__ import annotations

import pytest

from traincast.errors import RequestError
from traincast.units import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5min", 90),
        ("2m", 120),
        ("4h", 14400),
        (" 30 d ", 2592000),
        ("1w", 604800),
        ("0", 0),
    ],
)
def test_times_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text, what="it") == seconds


@pytest.mark.parametrize("text", ["", "h", "-3d", "nan", "inf", "1e999d", "3 years", "1h30", "٣s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="it is"):
        parse_seconds(text, what="it")
