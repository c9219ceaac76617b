"""The part ``traces``: what profiler traces hold, their replay, and what-if answers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.traces.made import device_bound, host_bound, pair_of_ranks

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope

_CHANGES: Final[dict[str, dict[str, Any]]] = {
    "host": {"host": "2x"},
    "network": {"network": "2x"},
    "no communication": {"no_communication": True},
    "overlap": {"overlap": True, "bucket": "100MB"},
    "half": {"amp": True, "fuse_optimizer": True},
    "graph": {"graph": True},
    "loader": {"loader_workers": 4},
    "device": {"gpu": "b200-sxm"},
    "many": {"gpu": "h200-sxm", "host": "1.5x", "network": "0.5x", "amp": True},
}

_LARGE: Final = 1_000_000
"""Bytes of a large trace."""


def _entries(scope: Scope) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _made(Path(folder)):
            yield from _asked(name, path)
    if scope.small:
        return
    data = scope.data / "traces" if scope.data else None
    if data is None or not data.is_dir():
        scope.skip("traces/", "the traces are not at hand; name their folder with --data")
        return
    single = [path for path in sorted(data.rglob("*.json.gz")) if path.parent.name != "dlrm_8ranks"]
    for path in (*single, data / "dlrm_8ranks"):
        yield from _asked(f"traces/{path.relative_to(data)}", path)


def _made(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield small traces that are made up: one that waits for its host, one for its device, and two ranks."""
    for name, made in (("host-bound", host_bound()), ("device-bound", device_bound())):
        yield f"made/{name}", made.write(folder / f"{name}.json")
    ranks = folder / "ranks"
    ranks.mkdir()
    for number, each in enumerate(pair_of_ranks()):
        each.write(ranks / f"rank{number}.json")
    yield "made/ranks", ranks


def _asked(name: str, path: Path) -> Iterator[Entry]:
    """Yield what is said of a trace; of a large one only its replay and a few changes."""
    large = path.is_file() and path.stat().st_size > _LARGE
    if not large:
        yield f"{name}: show", _answer(lambda: traincast.trace.show(path), path)
    yield f"{name}: replay", _answer(lambda: traincast.trace.replay(path), path)
    for change, given in _CHANGES.items():
        if large and change not in ("host", "many"):
            continue
        yield f"{name}: {change}", _answer(lambda given=given: traincast.trace.whatif(path, **given), path)  # type: ignore[misc]


def _answer(ask: Callable[[], Any], path: Path) -> tuple[str, ...]:
    try:
        found = canonical.plain(ask())
    except traincast.TraincastError as error:
        return (f"{REFUSED}{canonical.digest(str(error).replace(str(path), path.name))}",)
    said = canonical.digest_of_json(canonical.without(found, str(path.parent)))
    seconds = found.get("step_s") if "changes" in found else None
    return said, "-" if seconds is None else float(seconds).hex()


PART: Final = Part(name="traces", columns=("answer", "step_s"), entries=_entries)
