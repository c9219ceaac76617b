"""Asks of every family: what ``traincast.predict`` is given, drawn from fixed lists, so that an ask never changes.

Names are listed here and not taken from the program: a name that is added there must not change what is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from benchmarks.ledger.lists import (
    BASES,
    CONDITIONS,
    CONTRACT_CLUSTERS,
    CONTRACT_MODELS,
    FRAMEWORKS,
    MICROBATCHES,
    MIXED,
    MODELS,
    OPTIMIZERS,
    OPTIONS,
    PRECISIONS,
    REFUSED,
    RUNTIMES,
    SCHEDULES,
    SERVERS,
    SPREADS,
    TUNINGS,
)

Ask: TypeAlias = dict[str, Any]
"""Keywords of ``traincast.predict``; a graph is named by its model, conditions and job settings are dictionaries."""

_SEEDS: Final = 24
_PER_RUNTIME: Final = 12
_TUNED: Final = 160
_MOST_PARAMETERS: Final = 10**10


def all_asks(zoo: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Ask]]:
    """Yield the family and the keywords of every ask; ``zoo`` has the name and parameters of every model."""
    for family, found in (
        ("contract", _contract()),
        ("spread", _spreads()),
        ("zoo", _zoo(zoo)),
        ("tuned", _tuned()),
        ("servers", _servers()),
        ("mixed", _mixed()),
        ("conditions", _conditions()),
        ("job", _jobs()),
        ("export", _exports()),
        ("odd", _odd()),
        ("refused", REFUSED),
    ):
        seen: set[str] = set()
        for ask in found:
            if key_of(family, ask) not in seen:
                seen.add(key_of(family, ask))
                yield family, ask


def small_asks(asks: Iterable[tuple[str, Ask]]) -> Iterator[tuple[str, Ask]]:
    """Yield some of ``asks``: at least one of each runtime, precision, schedule, and of what else is listed."""
    seen: set[tuple[str, str]] = set()
    for family, ask in asks:
        marks = {(family, mark) for mark in _marks(family, ask)}
        if marks - seen and (family != "zoo" or ask["model"] in _SMALL_ZOO):
            seen |= marks
            yield family, ask


_SMALL_ZOO: Final = frozenset(
    "resnet50 bert-base gpt2 llama3-8b dlrm-small vit-base t5-base unet wav2vec2-base".split()
)


def _marks(family: str, ask: Ask) -> Iterator[str]:
    """Yield what makes an ask worth being in the small half."""
    if family == "contract":
        yield str(ask["runtime"])
    elif family in ("spread", "odd"):
        yield str(ask.get("precision"))
        yield str(ask.get("optimizer"))
        yield from (word for word in str(ask["strategy"]).split(",") if word.startswith("schedule="))
    elif family == "tuned":
        yield f"{ask.get('lora')} {ask.get('freeze')} {ask.get('quantize')}"
    elif family == "zoo":
        yield str(ask["model"])
    elif family in ("servers", "mixed"):
        yield str(ask["strategy"])
    elif family == "conditions":
        yield str(ask["conditions"])
    elif family == "export":
        yield str(ask["export"])
        yield str(ask["strategy"])
    else:
        yield str({name: value for name, value in ask.items() if name not in ("model", "cluster", "global_batch")})


def key_of(family: str, ask: Ask) -> str:
    """Return what is asked in one line: the family, and the keywords in the order of the ask."""
    return f"{family} " + " ".join(_words(ask))


def _words(ask: Ask) -> Iterator[str]:
    for name, value in ask.items():
        word = _NAMES.get(value, value) if isinstance(value, str) else str(value).replace(" ", "")
        yield word if name in ("model", "cluster", "strategy") else f"{name}={word}"


_NAMES: Final = {model: name for name, model in MODELS.items()} | {
    model: f"contract-{number}" for number, model in enumerate(CONTRACT_MODELS) if ":" in model
}
"""Short names of models that are given by their dimensions."""


def _contract() -> Iterator[Ask]:
    """Yield random problems, one for each seed and runtime: a model, a cluster, and a strategy that fills it."""
    for seed in range(_SEEDS):
        for runtime in RUNTIMES:
            chosen = random.Random(f"{seed} {runtime}")
            cluster, ranks = chosen.choice(CONTRACT_CLUSTERS)
            model = chosen.choice(CONTRACT_MODELS)
            yield {
                "model": model,
                "cluster": cluster,
                "strategy": _filling(chosen, ranks, convolutions=model.startswith("resnet"), moe="moe:" in model),
                "global_batch": chosen.choice((32, 48, 64)),
                "runtime": runtime,
                "precision": chosen.choice(PRECISIONS),
                "cost_model": chosen.choice(("learned", "analytical")),
            }


def _filling(chosen: random.Random, ranks: int, *, convolutions: bool, moe: bool) -> str:
    """Return a random strategy on ``ranks`` ranks."""
    degrees = dict.fromkeys(("dp",) if convolutions else ("dp", "tp", "pp", "cp"), 1)
    while ranks > 1:
        degrees[chosen.choice(sorted(degrees))] *= 2
        ranks //= 2
    words = [f"{name}={degree}" for name, degree in degrees.items() if degree > 1]
    if degrees.get("pp", 1) > 1:
        schedule = chosen.choice(SCHEDULES)
        words += [f"schedule={schedule}", chosen.choice(("num_microbatches=4", "num_microbatches=8", "micro_batch=1"))]
        if schedule in ("interleaved", "breadth-first") and degrees["pp"] == 2:
            words.append("vp=2")
    elif not convolutions:
        words.append(chosen.choice(("num_microbatches=1", "num_microbatches=2", "micro_batch=1")))
    replicas = degrees["dp"] * degrees.get("cp", 1)
    if replicas > 1:
        words.append(f"zero={chosen.randrange(4)}")
    if degrees.get("tp", 1) > 1 and chosen.random() < 0.5:
        words.append("sp")
    if moe and replicas > 1:
        words.append(chosen.choice(("ep=2,imbalance=1.5,capacity=1.25", "ep=2", "")))
    if not convolutions:
        words += [chosen.choice(("recompute=none", "recompute=full", "recompute=selective")), chosen.choice(BASES)]
    return ",".join(filter(None, words)) or "dp=1"


def _spreads() -> Iterator[Ask]:
    """Yield a sample of all ways to spread, microbatches, options and precisions; about half are refused."""
    for runtime in RUNTIMES:
        chosen = random.Random(f"spreads {runtime}")
        for _ in range(_PER_RUNTIME):
            strategy, ranks = chosen.choice(SPREADS)
            many = chosen.choice(MICROBATCHES)
            yield {
                "model": MODELS[chosen.choice(sorted(MODELS))],
                "cluster": f"dgx-a100:{max(1, ranks // 8)}x{min(8, ranks)}",
                "strategy": ",".join(filter(None, (strategy, many, chosen.choice(OPTIONS)))),
                "global_batch": 48 if "=3" in f"{strategy},{many}" else 64,
                "runtime": runtime,
                "precision": chosen.choice(PRECISIONS),
            }


def _zoo(zoo: Iterable[tuple[str, int]]) -> Iterator[Ask]:
    """Yield every model without a strategy, and those that are not too large also with one."""
    for name, parameters in sorted(zoo):
        yield {"model": name, "cluster": "dgx-h100:1", "global_batch": 64}
        if parameters <= _MOST_PARAMETERS:
            yield {"model": name, "cluster": "dgx-a100:2", "strategy": "dp=16,zero=1", "global_batch": 128}


def _tuned() -> Iterator[Ask]:
    for seed in range(_TUNED):
        chosen = random.Random(f"tuned {seed}")
        lora, freeze, quantize = TUNINGS[seed % len(TUNINGS)]
        strategy, ranks = chosen.choice(SPREADS)
        ask: Ask = {
            "model": chosen.choice((*MODELS.values(), "llama3-8b", "gpt2", "mixtral-8x7b")),
            "cluster": f"dgx-a100:{max(1, ranks // 8)}x{min(8, ranks)}",
            "strategy": ",".join(filter(None, (strategy, "num_microbatches=4", chosen.choice(OPTIONS)))),
            "global_batch": 48,
            "runtime": chosen.choice(RUNTIMES),
        }
        given = {"lora": lora, "freeze": freeze, "quantize": quantize, "optimizer": chosen.choice((None, *OPTIMIZERS))}
        yield {**ask, **{name: value for name, value in given.items() if value}}


def _servers() -> Iterator[Ask]:
    for strategy, clusters in SERVERS:
        for cluster in clusters:
            for model, batch in ((MODELS["gpt"], 48), ("resnet50", 96)):
                runtime = "tensorflow-ps" if model == "resnet50" else "pytorch"
                yield {
                    "model": model,
                    "cluster": cluster,
                    "strategy": strategy,
                    "global_batch": batch,
                    "runtime": runtime,
                }


def _mixed() -> Iterator[Ask]:
    for cluster, strategies in MIXED:
        for strategy in strategies:
            for model in (MODELS["gpt"], MODELS["moe"]):
                yield {
                    "model": model,
                    "cluster": cluster,
                    "strategy": strategy,
                    "global_batch": 48,
                    "runtime": "pytorch",
                }


def _conditions() -> Iterator[Ask]:
    for number, conditions in enumerate(CONDITIONS):
        for strategy in ("dp=16", "dp=4,pp=2,tp=2,num_microbatches=4", "dp=14,servers=2", "dp=16,zero=3"):
            yield {
                "model": MODELS["gpt"] if number % 2 else "llama3-8b",
                "cluster": "dgx-a100:2",
                "strategy": strategy,
                "global_batch": 112 if "14" in strategy else 64,
                "conditions": conditions,
            }


def _jobs() -> Iterator[Ask]:
    lengths = ({"tokens": 10**9}, {"samples": 10**6}, {"steps": 1000})
    settings = (
        None,
        {"startup_s": 10.0, "checkpoint_every_s": 600.0},
        {"evaluate_every_steps": 50, "bytes_per_token": 2.0},
    )
    for model in ("llama3-8b", "resnet50", "bert-base"):
        for length in lengths:
            for job in settings:
                for cluster in ("dgx-h100:2", "gb200-nvl72:1x8"):
                    ask: Ask = {"model": model, "cluster": cluster, "global_batch": 64, **length}
                    yield {**ask, "job": job} if job else ask


def _exports() -> Iterator[Ask]:
    """Yield strategies that the exporters know, whose texts are digested, too."""
    for framework in FRAMEWORKS:
        for model in ("llama3-8b", "gpt2", "mixtral-8x7b"):
            for strategy in (
                "dp=16,zero=1",
                "dp=16,zero=3",
                "dp=4,tp=4,sp",
                "dp=2,tp=4,pp=2,num_microbatches=8",
                "dp=4,pp=4,num_microbatches=8,recompute=full",
                "dp=8,cp=2",
                "dp=16,ep=4",
            ):
                yield {
                    "model": model,
                    "cluster": "dgx-h100:2",
                    "strategy": strategy,
                    "global_batch": 128,
                    "runtime": framework,
                    "export": framework,
                }


def _odd() -> Iterator[Ask]:
    """Yield rarer settings one by one: optimizers, lengths, shard rules, releases, single GPUs, no update."""
    base: Ask = {"model": MODELS["llama"], "cluster": "dgx-a100:1", "strategy": "dp=4,tp=2", "global_batch": 64}
    for optimizer in (*OPTIMIZERS, False):
        for precision in PRECISIONS:
            yield {**base, "optimizer": optimizer, "precision": precision}
    for device in (
        "dgx-1-v100:1x4",
        "pcie-t4:1x4",
        "gb200-nvl72:1x4",
        "tpu-v4-host:1x4",
        "dgx-b200:1x4",
        "mi300x-platform:1x4",
        "hls-gaudi2:1x4",
        "trn1.32xlarge:1x4",
    ):
        for strategy in ("dp=4", "dp=2,tp=2,zero=1", "pp=4,num_microbatches=4"):
            yield {**base, "cluster": device, "strategy": strategy}
    for seq in (128, 512, 4096, 32768):
        yield {"model": "llama3-8b", "cluster": "dgx-h100:2", "global_batch": 32, "seq": seq, "strategy": "dp=2,tp=8"}
    for release in ("24.01", "25.02", "25.09", "26.04"):
        yield {
            "model": "mixtral-8x7b",
            "cluster": "dgx-h100:2",
            "strategy": "dp=8,tp=2,ep=8",
            "global_batch": 64,
            "runtime": f"megatron-bridge:release={release}",
        }
    for rule in (("*.mlp.*", "replicate"), ("*attention*", "column"), ("layers.*", "row"), ("nothing", "row")):
        yield {**base, "shard_rules": (rule,)}
    for framework in RUNTIMES:
        yield {**base, "strategy": "dp=8", "runtime": framework, "model": "resnet50", "global_batch": 256}
        yield {**base, "strategy": "dp=8", "runtime": framework, "model": "bert-base"}
        yield {**base, "strategy": None, "runtime": framework, "model": "llama3-8b"}
