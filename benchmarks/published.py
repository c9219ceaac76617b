"""What a search picks for trainings whose strategy was published, beside what their authors ran.

    python -m benchmarks.published [NAME...] [--kept FILE.json] [--write]      # half an hour on one core

Large clusters are searched by annealing. Each finding is kept in FILE.json, and a later run with the
same file goes on with the others. Prints Markdown; with ``--write`` the table in docs/search.md is replaced. The facts
are those of the publications named in NOTICE.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.markers import write
from benchmarks.regret import PAGE
from traincast import predict, search
from traincast.searching.doubts import Doubts, lacking
from traincast.units import format_seconds

MANY: Final = 2048
"""A cluster with more devices than this is searched by annealing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A published training: what ran where, and how; ``said`` is what the authors state of the strategy."""

    model: str
    cluster: str
    devices: str
    batch: int
    said: str
    strategy: str
    precision: str = "bf16"


TRAININGS: Final[dict[str, Training]] = {
    "GPT-3 175B": Training(
        model="gpt3-175b",
        cluster="dgx-a100:96",
        devices="768 A100",
        batch=1536,
        said="tp=8, pp=12, interleaved",
        strategy="dp=8,tp=8,pp=12,num_microbatches=192,schedule=interleaved,virtual_stages=2,recompute=full",
    ),
    "OPT 175B": Training(
        model="gpt3-175b",
        cluster="dgx-a100:124",
        devices="992 A100",
        batch=992,
        said="tp=8, FSDP",
        strategy="dp=124,tp=8,zero=3,num_microbatches=1,recompute=full",
    ),
    "BLOOM 176B": Training(
        model="gpt:layers=70,hidden=14336,heads=112,vocab=250880,seq=2048",
        cluster="dgx-a100:48",
        devices="384 A100",
        batch=2048,
        said="dp=8, tp=4, pp=12, ZeRO-1",
        strategy="dp=8,tp=4,pp=12,zero=1,num_microbatches=128,schedule=1f1b,recompute=full",
    ),
    "GLM 130B": Training(
        model="gpt:layers=70,hidden=12288,heads=96,vocab=150528,seq=2048",
        cluster="dgx-a100-40gb:96",
        devices="768 A100 (40 GB)",
        batch=4224,
        said="dp=24, tp=4, pp=8",
        strategy="dp=24,tp=4,pp=8,zero=1,num_microbatches=176,schedule=1f1b,recompute=full",
        precision="fp16",
    ),
    "Megatron-Turing NLG 530B": Training(
        model="megatron-530b",
        cluster="dgx-a100:280",
        devices="2,240 A100",
        batch=1920,
        said="dp=8, tp=8, pp=35",
        strategy="dp=8,tp=8,pp=35,num_microbatches=240,schedule=1f1b,recompute=full",
    ),
    "MPT 30B": Training(
        model="mpt-30b",
        cluster="dgx-a100-40gb:55",
        devices="440 A100 (40 GB)",
        batch=1760,
        said="FSDP",
        strategy="dp=440,zero=3,num_microbatches=2,recompute=full",
    ),
    "Llama 3 405B": Training(
        model="llama3-405b",
        cluster="dgx-h100:2048",
        devices="16,384 H100",
        batch=2048,
        said="dp=128, tp=8, pp=16, FSDP",
        strategy="dp=128,tp=8,pp=16,zero=1,num_microbatches=16,schedule=1f1b,sequence_parallel",
    ),
    "DeepSeek V3": Training(
        model="deepseek-v3",
        cluster="hgx-h800:256",
        devices="2,048 H800",
        batch=15360,
        said="pp=16, ep=64, ZeRO-1, DualPipe, fp8",
        strategy="dp=128,pp=16,ep=64,zero=1,num_microbatches=120,schedule=dualpipe",
        precision="fp8",
    ),
    "Nemotron-4 340B": Training(
        model="gpt:layers=96,hidden=18432,heads=96,vocab=256000,seq=4096",
        cluster="dgx-h100:768",
        devices="6,144 H100",
        batch=2304,
        said="dp=64, tp=8, pp=12, interleaved",
        strategy="dp=64,tp=8,pp=12,zero=1,num_microbatches=36,schedule=interleaved,virtual_stages=8,sequence_parallel",
    ),
    "GPT 175B (MegaScale)": Training(
        model="gpt3-175b",
        cluster="dgx-a100:1536",
        devices="12,288 A100",
        batch=6144,
        said="dp=192, tp=8, pp=8, 6 virtual stages",
        strategy="dp=192,tp=8,pp=8,zero=1,num_microbatches=32,schedule=interleaved,virtual_stages=6,sequence_parallel",
    ),
}
"""The published trainings; what authors leave open is the usual choice of their framework."""


def main(arguments: list[str] | None = None) -> None:
    """Search for each training, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    kept: dict[str, dict[str, Any]] = {}
    if given.kept and given.kept.is_file():
        kept = json.loads(given.kept.read_text(encoding="utf-8"))
    for name in given.names or TRAININGS:
        if name not in kept:
            kept[name] = _found(TRAININGS[name])
            print(name, kept[name], flush=True)
            if given.kept:
                given.kept.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    table = _table(kept)
    print(table)
    if given.write:
        write(PAGE, "published", table)


def _found(training: Training) -> dict[str, Any]:
    """Return what a search picks for a training, and the forecast of what its authors ran."""
    asked: dict[str, Any] = {
        "cluster": training.cluster,
        "global_batch": training.batch,
        "precision": training.precision,
        "runtime": "megatron",
        "use_cache": True,
    }
    ran = predict(training.model, strategy=training.strategy, **asked)
    large = ran.request.cluster.num_devices >= MANY
    answer = search(training.model, searcher="annealing" if large else "auto", **asked)
    found: dict[str, Any] = {
        "searcher": answer.searcher,
        "ran_s": ran.report.step_s,
        "ran_fits": ran.report.fits,
        "ran_without": list(lacking(Doubts(ran.request).of(ran.request.strategy))),
        "reason": answer.reason,
    }
    for name, candidate in (("first", answer.best), ("fastest", answer.fastest)):
        found[name] = str(candidate.strategy)
        found[f"{name}_s"] = candidate.report.step_s
        found[f"{name}_without"] = list(lacking(candidate.evidence))
        found[f"{name}_runs"] = {each.technique: each.runs for each in candidate.evidence}
    found["regret"] = answer.best.regret
    return found


def _table(kept: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| training | authors ran | forecast | first choice of `search` | forecast | evidence | fastest forecast |",
        "| --- | --- | ---: | --- | ---: | --- | --- |",
    ]
    for name, training in TRAININGS.items():
        if name not in kept:
            continue
        found = kept[name]
        runs = found["first_runs"]
        fewest = min(runs, key=lambda technique: runs[technique]) if runs else ""
        evidence = "needs none"
        if found["first_without"]:
            evidence = f"none for {', '.join(found['first_without'])}: {found['reason']}"
        elif fewest:
            evidence = f"fewest for {fewest}: {runs[fewest]} runs"
        same = found["fastest"] == found["first"]
        missing = f" (no evidence: {', '.join(found['fastest_without'])})" if found["fastest_without"] else ""
        fastest = "the same" if same else f"`{found['fastest']}`, {format_seconds(found['fastest_s'])}{missing}"
        fits = "" if found["ran_fits"] else ", may not fit"
        lines.append(
            f"| {name}, {training.devices}, batch {training.batch:,} | {training.said} | "
            f"{format_seconds(found['ran_s'])}{fits} | `{found['first']}` | {format_seconds(found['first_s'])} | "
            f"{evidence} | {fastest} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
