"""The part ``events``: forecasts and a search from a stored folder of measured events, by the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import FOLDER, REFUSED, Entry, Part, Scope

_EVENTS: Final = FOLDER / "events"
_MODEL: Final = "gpt:layers=2,hidden=64,heads=4,vocab=256,seq=32"
_ASKS: Final = (
    f"predict {_MODEL} --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8",
    f"predict {_MODEL} --cluster cpu-server:4x1 --strategy dp=4 --global-batch 16",
    f"predict {_MODEL} --cluster cpu-server:4x1 --strategy dp=4,zero=1 --global-batch 16",
    f"predict {_MODEL} --cluster cpu-server:2x1 --strategy pp=2,num_microbatches=4 --global-batch 8",
    f"predict {_MODEL} --cluster cpu-server:2x1 --strategy dp=2 --global-batch 16 --steps 1000",
    f"predict {_MODEL} --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8 --optimizer sgd",
    f"predict {_MODEL} --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8 --slow 1=2",
    "predict gpt:layers=4,hidden=64,heads=4,vocab=256,seq=32 --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8",
    "predict resnet18 --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8",
    f"predict {_MODEL} --cluster dgx-a100:1 --strategy dp=8 --global-batch 8",
    f"search {_MODEL} --cluster cpu-server:4x1 --global-batch 16 --constraint schedule=1f1b --workers 1",
)
_OTHER: Final = f"predict {_MODEL} --cluster cpu-server:2x1 --strategy dp=2 --global-batch 8"


def _entries(scope: Scope) -> Iterator[Entry]:
    for ask in _ASKS:
        if scope.small and ask.startswith("search"):
            continue
        yield ask, _answer(ask, "--precision", "fp32", "--runtime", "gloo")
    yield f"{_OTHER} --precision bf16", _answer(_OTHER, "--precision", "bf16", "--runtime", "gloo")
    yield f"{_OTHER} --runtime ddp", _answer(_OTHER, "--precision", "fp32", "--runtime", "ddp")


def _answer(ask: str, *more: str) -> tuple[str, ...]:
    try:
        found = canonical.command(*ask.split(), *more, "--events", str(_EVENTS), "--json")
    except traincast.RequestError as error:
        return (f"{REFUSED}{str(error).replace(str(_EVENTS), 'events')}",)
    for clock in ("seconds", "cpu_seconds"):
        found.pop(clock, None)
    best = found if "step_s" in found else found["best"]
    words = canonical.without(found.pop("warnings"), str(_EVENTS))
    figures = (float(best[name]).hex() for name in ("step_s", "low_s", "high_s"))
    said = canonical.digest_of_json(canonical.without(found, str(_EVENTS)))
    return said, canonical.digest_of_json(words, 8), *figures


PART: Final = Part(name="events", columns=("answer", "words", "step_s", "low_s", "high_s"), entries=_entries)
