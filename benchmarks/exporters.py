"""Gives exports to the frameworks' own configuration code, and counts how many it accepts, with reasons for the others.

python -m benchmarks.exporters --framework NAME --python /path/to/its/python [--path FOLDER] [--count N] [--seed N]
    [--fields tests/export/fields/NAME.json]

The framework is installed in an environment of its own (``--python``); ``--path`` is a folder with its source, if its
wheel lacks it. The answers of a search for every model of the list come first, then random strategies until N have been
written. Strategies that Traincast itself refuses are counted with the reason, and not given to the framework.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.export.reading import names_in

from benchmarks.timing import table
from traincast.ask import Training
from traincast.cluster import load_cluster
from traincast.errors import StrategyError
from traincast.export import FRAMEWORKS, axes_of, export
from traincast.export.shape import decoder_of
from traincast.export.torchtitan import FLAVORS
from traincast.graph import OperatorGraph
from traincast.graph.load import load_model
from traincast.resolve import resolve
from traincast.searching.search import search
from traincast.strategy import SCHEDULES, Request, Strategy
from traincast.strategy.prepare import prepare

MODELS: Final = {
    "llama3-8b": 4,
    "qwen3-8b": 2,
    "mixtral-8x7b": 2,
    "qwen3-30b-a3b": 2,
    "deepseek-v2-lite": 2,
    "deepseek-v3": 1,
    "gpt-oss-20b": 1,
    "gpt3-6.7b": 1,
    "llama:layers=12,hidden=256,heads=8,kv_heads=4,vocab=1000,seq=512": 4,
    "moe:layers=8,hidden=256,heads=8,kv_heads=8,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=512": 3,
}
"""Models, and how often each is drawn."""
CHOSEN: Final = (
    ("llama3-8b", "dgx-h100", 64),
    ("llama3-70b", "dgx-h100:8", 256),
    ("mixtral-8x7b", "dgx-h100:4", 128),
    ("deepseek-v3", "dgx-h100:64", 1024),
    ("qwen3-30b-a3b", "dgx-h100:2", 128),
    ("gpt3-6.7b", "dgx-a100", 64),
)
"""Model, cluster and global batch of the searches."""
_TRIES: Final = 400
"""Largest number of draws for each export."""
_PRECISIONS: Final = ("bf16",) * 6 + ("fp8", "fp16", "fp32", "tf32", "amp", "amp-bf16", "nvfp4")


def chosen(framework: str) -> Iterator[Request]:
    """Return the answers of searches for strategies that the framework can express, with its own runtime."""
    for model, cluster, batch in CHOSEN:

        def accepts(request: Request) -> bool:
            try:
                export(request, framework)
            except StrategyError:
                return False
            return True

        try:
            answer = search(
                model, cluster=cluster, global_batch=batch, runtime=framework, accepts=accepts,
                constraint=axes_of(framework, model), use_cache=True,
            )  # fmt: skip
        except StrategyError as error:
            print(f"search for {model} on {cluster}: {error}")
            continue
        for candidate in answer.candidates:
            yield candidate.request


@cache
def graph_of(name: str) -> OperatorGraph:
    """Return the graph of a model; it is read once."""
    return load_model(name, use_cache=True)


def drawn(framework: str, draws: random.Random) -> Iterator[Request]:
    """Yield random strategies; every setting is drawn now and then."""
    names = list(MODELS)
    while True:
        name = draws.choices(names, weights=list(MODELS.values()))[0]
        nodes = draws.choice((1, 1, 2, 4, 8))
        place = load_cluster("dgx-h100")
        devices = draws.choice((2, 4, 8)) if nodes == 1 else 8
        base = resolve(
            Training(
                graph_of(name),
                cluster=replace(place, num_nodes=nodes, devices_per_node=devices),
                global_batch=draws.choice((64, 128, 192)),
                runtime=draws.choice((framework, framework, "pytorch", "fsdp", "megatron")),
                precision=draws.choice(_PRECISIONS),
            )
        ).request
        try:
            yield replace(base, strategy=_strategy(base, framework, draws))
        except StrategyError:
            continue


def _strategy(base: Request, framework: str, draws: random.Random) -> Strategy:
    """One strategy on all devices of ``base``; most settings as usual, each now and then at random."""

    def now_and_then(usual: Any, make: Callable[[], Any], chance: float = 0.15) -> Any:
        return make() if draws.random() < chance else usual

    left = base.cluster.num_devices
    degrees: dict[str, Any] = {}
    for name in draws.sample(("tp", "pp", "cp"), 3):
        degree = draws.choice([d for d in (1, 1, 2, 3, 4, 8) if left % d == 0])
        degrees[name], left = degree, left // degree
    model = decoder_of(base.graph)
    pipeline = degrees["pp"] > 1
    zero: Any = draws.choice({"nanotron": (0, 1), "torchtitan": (0, 3, 3)}.get(framework, (0, 1, 1, 2, 3)))
    virtual = now_and_then(1, lambda: draws.choice((2, 3)), 0.3) if pipeline else 1
    recompute: Any = draws.choice(("none", "none", "selective", "full"))
    replicas = left * degrees["cp"]
    most = base.global_batch // left
    return Strategy(
        dp=left,
        **degrees,
        ep=draws.choice((1, 2, 4, 8)) if model is not None and model.experts else 1,
        etp=now_and_then(0, lambda: draws.choice((1, 2))),
        virtual_stages=virtual,
        num_microbatches=draws.choice([n for n in range(1, most + 1) if most % n == 0] or [1]),
        schedule=now_and_then("1f1b", lambda: draws.choice(sorted(SCHEDULES)), 0.4) if pipeline else "1f1b",
        zero=zero,
        shard=now_and_then(0, lambda: draws.choice((1, 2, 4, replicas))) if zero else 0,
        reshard=now_and_then(True, lambda: False) if zero == 3 else True,
        prefetch=now_and_then(-1, lambda: draws.choice((0, 1, 2))) if zero == 3 else -1,
        sequence_parallel=degrees["tp"] > 1 and draws.random() < (0.1 if framework == "deepspeed" else 0.8),
        context=draws.choice(("all_gather", "ring")),
        recompute=recompute,
        recompute_every=now_and_then(1, lambda: 2) if recompute == "full" else 1,
        offload=now_and_then(
            (), lambda: draws.choice((("optimizer",), ("activations",), ("optimizer", "activations")))
        ),
        compression=now_and_then(1.0, lambda: 0.5, 0.03),
        imbalance=now_and_then(1.0, lambda: 1.5),
        capacity=now_and_then(0.0, lambda: 1.5, 0.1),
        sync_each=now_and_then(False, lambda: True, 0.4 if framework == "torchtitan" else 0.1),
    )


def case_of(request: Request, text: str) -> dict[str, Any]:
    """Return the input of a judge: the text, and the values that the framework must read from it."""
    strategy, model = request.strategy, decoder_of(request.graph)
    assert model is not None
    return {
        "text": text,
        "strategy": f"{request.graph.name}: {strategy} ({request.precision.name})",
        "world": request.cluster.num_devices,
        "batch": request.global_batch,
        "dp": strategy.dp,
        "tp": strategy.tp,
        "cp": strategy.cp,
        "layers": model.layers,
        "experts": model.experts,
        "expert_ffn": model.expert_ffn,
        "qk_norm": bool(model.other.get("qk_norm")) or model.family == "deepseek",
        "parameters": request.graph.num_parameters,
        "known": request.graph.name in FLAVORS,
        "chunks": 2 if strategy.pp > 1 and strategy.schedule == "zb-v" else strategy.virtual_stages,
    }


def written(requests: Iterator[Request], framework: str, count: int, refused: Counter[str]) -> Iterator[dict[str, Any]]:
    """Return ``count`` exports of the requests, and count the reasons of those refused."""
    found = 0
    for tried, request in enumerate(requests):
        if found == count or tried > _TRIES * count:
            return
        try:
            text = FRAMEWORKS[framework].write(request)
            prepare(request)  # the slower question comes last
        except StrategyError as error:
            reason = str(error).rpartition("cannot be written for ")[2].partition(": ")[2]
            refused[reason if "cannot be written for" in str(error) else "cannot be forecast"] += 1
            continue
        found += 1
        yield case_of(request, text)


def judged(
    cases: list[dict[str, Any]], framework: str, python: Path, path: Path | None
) -> tuple[dict[str, str], list[str]]:
    """Return the framework's fields, and its complaints about each case; none if it accepts the case."""
    here = Path(__file__).resolve().parent.parent
    folders = os.pathsep.join(str(folder) for folder in (here, path) if folder)
    with tempfile.TemporaryDirectory() as folder:
        verdicts = Path(folder) / "verdicts"
        run = subprocess.run(
            [str(python), "-m", f"benchmarks.judges.{framework}", str(verdicts)],
            input="".join(json.dumps(case) + "\n" for case in cases),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"},
        )
        if run.returncode:
            raise SystemExit(f"the judge of {framework} failed:\n{run.stderr[-2000:]}")
        known, *words = [json.loads(line) for line in verdicts.read_text(encoding="utf-8").splitlines()]
        return known, words


def _kind(name: str, known: dict[str, str]) -> str:
    """Return the type of a field; for a section that is not a class, the framework gives only names."""
    if name not in known:
        unknown = [part for part in name.split(".") if part not in known]
        assert not unknown, f"{unknown} of {name} are not in the framework"
    return known.get(name, "any")


def main(arguments: list[str] | None = None) -> None:
    """Write exports, give them to the framework, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--python", required=True, type=Path, help="the Python that has the framework")
    parser.add_argument("--path", type=Path, help="a folder to put on its path")
    parser.add_argument("--count", type=int, default=500, help="random strategies to hand on")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws others")
    parser.add_argument("--no-search", action="store_true", help="random strategies alone")
    parser.add_argument("--fields", type=Path, help="write the fields that exports use, as the framework has them")
    given = parser.parse_args(arguments)
    rows, failed, used, known = [], Counter[str](), set[str](), dict[str, str]()
    refused: Counter[str] = Counter()
    sources = {"random": (drawn(given.framework, random.Random(given.seed)), given.count)}
    if not given.no_search:
        sources = {"chosen by a search": (chosen(given.framework), 1000), **sources}
    for source, (requests, count) in sources.items():
        cases = list(written(requests, given.framework, count, refused))
        known, verdicts = judged(cases, given.framework, given.python, given.path)
        used |= {name for case in cases for name, _ in names_in(case["text"], given.framework)}
        for case, words in zip(cases, verdicts, strict=True):
            if words:
                failed[f"{words}  [{case['strategy']}]"] += 1
        accepted = sum(not words for words in verdicts)
        rows.append((source, str(len(cases)), str(accepted), str(len(cases) - accepted)))
    release = FRAMEWORKS[given.framework].release
    table(f"{given.framework} {release}", ("strategies", "written", "accepted", "failed"), rows)
    if given.fields is not None:
        stated = {"release": release, "fields": {name: _kind(name, known) for name in sorted(used)}}
        given.fields.write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
    print(f"\nrefused by Traincast first: {sum(refused.values())}")
    for reason, times in refused.most_common():
        print(f"  {times:5d}  {reason}")
    for words in failed:
        print(f"FAILED  {words}")


if __name__ == "__main__":
    main()
