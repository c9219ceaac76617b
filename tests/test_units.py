"""Units are read as people write them, and what is none is refused."""

from __future__ import annotations

import pytest

from traincast import RequestError
from traincast.units import format_bytes, format_count, format_flops, format_seconds, parse_rate, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1.5min", 90),
        ("2m", 120),
        ("4h", 14400),
        (" 30 d ", 2592000),
        ("1w", 604800),
        ("1y", 31536000),
        ("0.5 D", 43200),
        ("0", 0),
    ],
)
def test_times_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text, what="it") == seconds


def test_a_time_without_a_unit_is_seconds_and_zero_is_refused_if_asked() -> None:
    assert parse_seconds("90", what="it") == 90
    with pytest.raises(
        RequestError, match="it is 'x': expected a time of zero or more, such as 90s, 30min, 36h or 14d"
    ):
        parse_seconds("x", what="it")
    with pytest.raises(RequestError, match="it is '0': expected a time above zero"):
        parse_seconds("0", what="it", zero=False)


@pytest.mark.parametrize("text", ["", "h", "-3d", "nan", "inf", "1e999d", "3 years", "1h30", "٣s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="it is"):
        parse_seconds(text, what="it")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1 Gbit/s", 125e6),
        ("1Gbit", 125e6),
        ("200 Mbps", 25e6),
        ("10Gb/s", 1.25e9),
        ("25 GB/s", 25e9),
        ("64 kbit/s", 8e3),
        ("1e9", 1e9),
        ("8 bit/s", 1.0),
    ],
)
def test_rates_are_read_in_bits_and_bytes(text: str, rate: float) -> None:
    assert parse_rate(text, what="it") == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "0 Gbit/s", "-1 GB/s", "nan", "1 Gbit/h", "1 mbit/s", "1e999 GB/s", "1 G"]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="expected a data rate above zero, such as 1Gbit/s or 25GB/s"):
        parse_rate(text, what="it")


@pytest.mark.parametrize(
    ("value", "count", "flops"),
    [
        (0, "0", "0 MFLOP"),
        (999.4, "999", "999 MFLOP"),
        (999.6, "1 k", "1 GFLOP"),
        (999.7e6, "1 B", "1 PFLOP"),
        (1.0e9, "1 B", "1 PFLOP"),
        (8.03e9, "8.03 B", "8.03 PFLOP"),
        (1.2345e16, "12,340 T", "12,340 EFLOP"),
    ],
)
def test_a_number_is_rounded_before_its_unit_is_chosen(value: float, count: str, flops: str) -> None:
    assert format_count(value) == count
    assert format_flops(value * 1e6) == flops


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (999.6e-6, "1 ms"), (0.9999, "1 s"), (12.34, "12.3 s"), (180, "3 min"), (1e9, "11,570 d")],
)
def test_times_never_have_an_exponent(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_bytes_are_rounded_before_their_unit_is_chosen() -> None:
    assert [format_bytes(n) for n in (1023, 1023.6, 1023.97 * 1024, 79.2 * 2**30)] == [
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "79.2 GiB",
    ]
