"""``python -m benchmarks.ledger``: makes the ledger, or compares the program with it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import benchmarks.ledger
from benchmarks.ledger import arithmetic, events, forecasts, graphs, rows, schedules, searches, traces
from benchmarks.ledger.entries import Difference, Part, Scope, differences

PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        forecasts.PART,
        rows.PART,
        graphs.CONFIGURATIONS,
        graphs.GRAPHS,
        searches.PART,
        schedules.PART,
        traces.PART,
        events.PART,
    )
}
_SHOWN: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Make or compare the chosen parts; return 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=benchmarks.ledger.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("make", "compare"))
    parser.add_argument("--small", action="store_true", help="the half that `make test` compares")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="only these parts")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the tables of measurements")
    parser.add_argument("--all", action="store_true", help="print every difference, not the first of each kind")
    options = parser.parse_args(arguments)
    if options.action == "make" and options.small:
        parser.error("make --small: the small half is part of the whole; leave out --small")
    if len(options.part) > 1 or not arithmetic.is_pinned():
        return max(_apart(name, options) for name in options.part)
    data = options.data if options.data.is_dir() else None
    exact = options.action == "make" or arithmetic.is_same()
    if not exact:
        print(arithmetic.SAID)
    elif options.action == "make":
        arithmetic.store()
    found: dict[str, list[Difference]] = {}
    for name in options.part:
        scope, started = Scope(small=options.small, data=data, exact=exact), time.process_time()
        if options.action == "make":
            count = _make(PARTS[name], scope)
        else:
            count, found[name] = differences(PARTS[name], scope)
        spent = time.process_time() - started
        print(f"{name}: {count:,} entries, {len(found.get(name, ()))} differ, {spent:.0f} s of processor time")
        for beginning, reason in scope.skipped.items():
            print(f"  skipped {beginning}: {reason}")
        _show(found.get(name, ()), every=options.all)
    return 1 if any(found.values()) else 0


def _apart(part: str, options: argparse.Namespace) -> int:
    """Make or compare one part in a process of its own; return its exit code.

    Estimates that another part left in memory were computed in larger or smaller batches: their last digits differ.
    """
    words = [sys.executable, "-m", "benchmarks.ledger", options.action, "--part", part, "--data", str(options.data)]
    words += [flag for flag, given in (("--small", options.small), ("--all", options.all)) if given]
    return subprocess.run(words, env={**os.environ, **arithmetic.PINNED}, check=False).returncode


def _make(part: Part, scope: Scope) -> int:
    """Compute the entries of ``part`` and store them; those that are skipped here stay as they were."""
    new = part.computed(scope)
    if scope.skipped and part.path.exists():
        new |= {key: values for key, values in part.stored().items() if scope.skips(key)}
    part.store(new)
    return len(new)


def _show(found: Sequence[Difference], *, every: bool) -> None:
    kinds: dict[str, list[Difference]] = defaultdict(list)
    for each in found:
        kinds[each.kind()].append(each)
    for kind, those in kinds.items():
        print(f" {kind}: {len(those)} entries")
        for each in those if every else those[:_SHOWN]:
            print("\n".join(each.lines()))
        if not every and len(those) > _SHOWN:
            print(f"  … and {len(those) - _SHOWN} more; --all prints them")


if __name__ == "__main__":
    sys.exit(main())
