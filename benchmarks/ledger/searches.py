"""The part ``searches``: every column of all evaluated strategies, the ranking and the front."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope

_GPT: Final = "gpt:layers=4,hidden=256,heads=4,vocab=1000,seq=256"
_DEEP: Final = "gpt:layers=8,hidden=256,heads=4,vocab=8000,seq=256"
_MOE: Final = "moe:layers=4,hidden=256,heads=4,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=256"
_SMALL: Final[dict[str, dict[str, Any]]] = {
    "tiny": {
        "model": _GPT, "cluster": "dgx-a100:1x4", "global_batch": 16, "runtime": "megatron",
        "constraint": "schedule=1f1b|interleaved,vp<=2",
    },
    "network": {"model": "resnet18", "cluster": "dgx-a100:1", "global_batch": 64},
    "impossible": {"model": _GPT, "cluster": "dgx-a100:1", "global_batch": 16, "constraint": "tp=3"},
}  # fmt: skip
_LARGE: Final[dict[str, dict[str, Any]]] = {
    "deep": {
        "model": _DEEP, "cluster": "dgx-a100:2", "global_batch": 32, "runtime": "megatron",
        "constraint": "schedule=1f1b|zb-v|interleaved,vp<=2,cp=1",
    },
    "deep, memory": {
        "model": _DEEP, "cluster": "dgx-a100:1", "global_batch": 32, "constraint": "memory<=4GB", "objective": "memory",
    },
    "experts": {
        "model": _MOE, "cluster": "dgx-h100:2", "global_batch": 32, "runtime": "megatron", "constraint": "cp=1",
    },
    "llama": {"model": "llama3-8b", "cluster": "dgx-h100:2", "global_batch": 64},
    "llama, annealed": {"model": "llama3-8b", "cluster": "dgx-h100:4", "global_batch": 64, "searcher": "annealing"},
    "llama, bounded": {
        "model": "llama3-8b", "cluster": "dgx-h100:1", "global_batch": 32, "searcher": "branch-and-bound",
    },
    "llama, tuned": {
        "model": "llama3-8b", "cluster": "dgx-a100:1", "global_batch": 16, "lora": "rank=8,targets=attention",
        "quantize": "4", "constraint": "cp=1,pp=1",
    },
    "clusters": {
        "model": "bert-base", "cluster": "dgx-a100:1", "global_batch": 64, "nodes": (1, 2), "steps": 10_000,
        "devices": ("a100-sxm4-80gb", "h100-sxm5-80gb"), "objective": "cost", "deadline_s": 86_400.0,
    },
    "calibrated": {
        "model": "llama3.2-1b", "cluster": "h100-sxm5-80gb-nanotron-ultrascale:1", "global_batch": 32,
        "runtime": "nanotron",
    },
    "mixed": {"model": _GPT, "cluster": "dgx-a100:1x4+dgx-h100:1x4", "global_batch": 32, "constraint": "cp=1"},
    "gloo": {
        "model": _GPT, "cluster": "dgx-a100:1x4", "global_batch": 16, "runtime": "gloo", "constraint": "schedule=1f1b",
    },
}  # fmt: skip


def _entries(scope: Scope) -> Iterator[Entry]:
    for name, asked in (_SMALL if scope.small else _SMALL | _LARGE).items():
        yield from _searched(name, asked)


def _searched(name: str, asked: dict[str, Any]) -> Iterator[Entry]:
    """Yield an entry for each column of the evaluated strategies, and one for each list of the answer."""
    given = dict(asked)
    try:
        answer = traincast.search(given.pop("model"), engine=traincast.load_engine("local", workers=1), **given)
    except traincast.TraincastError as error:
        yield name, (f"{REFUSED}{error}",)
        return
    for column, digest in canonical.search_columns(answer):
        yield f"{name}: column {column}", (digest, "-")
    found = canonical.plain(answer)
    for field in ("best", "candidates", "pareto", "naive", "clusters", "influence", "warnings"):
        listed = found[field]
        shown = "-" if field != "best" else float(listed["step_s"]).hex()
        yield f"{name}: {field}", (canonical.digest_of_json(listed), shown)
    counts = [found[field] for field in ("evaluated", "feasible", "families", "works", "sure", "num_steps")]
    yield f"{name}: counts", (canonical.digest_of_json(counts), str(found["evaluated"]))


PART: Final = Part(name="searches", columns=("digest", "shown"), entries=_entries)
