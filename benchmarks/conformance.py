"""Forecasts a sample of all strategies, schedules, options, runtimes and precisions, and counts how many are sound.

python -m benchmarks.conformance [--count N] [--seed N] [--seconds S]

With three small models, there are millions of combinations. N of them are drawn, or as many as S seconds allow; equal
seeds draw the same. Each is sound (``tests/conformance/test_strategies.py`` defines this), or refused in one line, or
fails and is printed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter

from tests.conformance.test_strategies import Combination, product, runs, sample

from benchmarks.timing import table
from traincast.estimate import AnalyticalCostModel
from traincast.strategy import SCHEDULES, runtime_names

TO_REACH = 2000
OUTCOMES = ("run", "refused", "failed")


def walk(count: int, *, seed: int, seconds: float, every: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Return the outcomes by property of a combination, and the failures; every ``every``-th is also expanded."""
    found: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    started = time.perf_counter()
    for number, combination in enumerate(sample(count, seed=seed)):
        if time.perf_counter() - started > seconds:
            break
        outcome, reason = _outcome(combination, in_full=number % every == 0)
        if reason:
            failures.append(f"{combination}: {reason}")
        for part in ("all", combination.model, combination.schedule, combination.runtime, combination.precision):
            found[part, outcome] += 1
    return found, failures


def _outcome(combination: Combination, *, in_full: bool) -> tuple[str, str]:
    try:
        return ("run" if runs(combination, model=AnalyticalCostModel(), in_full=in_full) else "refused"), ""
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return "failed", f"{type(error).__name__}: {lines[0]}"


def _rows(found: Counter[tuple[str, str]], parts: list[str]) -> list[tuple[str, ...]]:
    return [(part, *(f"{found[part, outcome]:,}" for outcome in OUTCOMES)) for part in parts]


def main(arguments: list[str] | None = None) -> None:
    """Forecast a sample of the combinations and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000, help="combinations to walk; 0 for all of them")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another sample")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop at the latest")
    parser.add_argument("--every", type=int, default=8, help="one of so many is also run rank by rank, op by op")
    options = parser.parse_args(arguments)
    parts = product()
    total = math.prod(len(part) for part in parts)
    found, failures = walk(
        min(options.count or total, total), seed=options.seed, seconds=options.seconds, every=options.every
    )
    models, _, _, _, _, precisions = parts
    walked = sum(found["all", outcome] for outcome in OUTCOMES)
    for name, chosen in (
        ("schedule", ["none", *SCHEDULES]),
        ("runtime", list(runtime_names())),
        ("precision", list(precisions)),
        ("model", list(models)),
    ):
        table(f"by {name}", (name, *OUTCOMES), _rows(found, chosen))
    title = f"{walked:,} of {total:,} combinations (to reach: {TO_REACH:,} that run, none that fail)"
    table(title, ("", *OUTCOMES), _rows(found, ["all"]))
    for line in failures:
        print(f"  {line}")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
