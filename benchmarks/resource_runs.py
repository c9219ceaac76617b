"""Measured use of resources: hundreds of short runs of the testbed, each watched by the sampler.

    python -m benchmarks.resource_runs -o DIR [--runs 450]

Models × settings × devices × rates × batch sizes, drawn without repetition in a fixed order. Settings are parameter
servers (P servers, W workers, at most four processes) and all-reduce with two to four ranks; compute is emulated,
messages are real. A run that is done stays in DIR: the command resumes where it was stopped. Runs whose hosts lagged
behind their devices are marked. Needs root, for the shaped links.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traincast.files import make_folder, write_json, write_text

if TYPE_CHECKING:
    from traincast.cluster import Cluster
    from traincast.forecast import Forecast
    from traincast.graph import OperatorGraph
    from traincast.testbed.request import RunRequest

MODELS: Final[dict[str, str]] = {
    "resnet20": "resnet-cifar:layers=20",
    "resnet56": "resnet-cifar:layers=56",
    "densenet40": "densenet40-k12",
    "squeezenet": "squeezenet",
    "mobilenet-v2": "mobilenet-v2",
    "mobilenet-v3": "mobilenet-v3-small",
    "shufflenet": "shufflenet-v2",
    "vnet": "vnet",
    "gpt": "gpt:layers=4,hidden=256,heads=4,vocab=1024,seq=128,tied=false",
    "gpt-narrow": "gpt:layers=8,hidden=128,heads=4,vocab=2048,seq=128,tied=false",
    "llama": "llama:layers=4,hidden=256,heads=4,vocab=1024,seq=128",
    "bert": "bert:layers=4,hidden=192,heads=4,vocab=2048,seq=128",
    "vit": "vit:layers=6,hidden=192,heads=3,patch=16,image=128,classes=100",
    "t5": "t5:layers=3,hidden=192,heads=4,vocab=2048,seq=64",
    "nmt": "nmt:layers=2,hidden=256,vocab=2000,seq=30",
    "luong": "nmt-luong:layers=2,hidden=256,vocab=2000,seq=30",
    "ncf": "ncf:users=10000,items=4000,factors=32,layers=256x256x128x64",
    "vae": "vae-cf:items=4000,layers=400x200",
    "tft": "tft",
    "unet": "unet-industrial",
}
SETTINGS: Final = ("dp=2,servers=1", "dp=2,servers=2", "dp=3,servers=1", "dp=2", "dp=3", "dp=4")
DEVICES: Final = ("k80", "v100-sxm2-16gb", "rtx-2080-ti", "titan-rtx")
RATES: Final = ("200Mbit", "500Mbit", "1Gbit", "2Gbit")
TARGETS_S: Final = (0.12, 0.25, 0.5)
"""Seconds that a worker computes in a step, about; the batch follows."""
HZ: Final = 100.0
_LONGEST_STEP_S: Final = 1.3
_SHORTEST_STEP_S: Final = 0.1
_HOST_S: Final = 350e-6
"""Seconds of a core that the host of an emulated device needs for an operator."""
_OBSERVED_S: Final = 3.0
_MOST_BATCH: Final = 1 << 15
_FEWEST_STEPS: Final = 4
_MOST_STEPS: Final = 12
_PATIENCE_S: Final = 60.0
_PLANNING_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRun:
    """One run: a model in a setting, with the batch of each worker."""

    model: str
    setting: str
    device: str
    rate: str
    batch: int
    steps: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "-".join([self.model, self.setting.replace(",", "-"), self.device, self.rate, f"b{self.batch}"])

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.setting.partition(",")[0].removeprefix("dp="))

    @property
    def servers(self) -> int:
        """The number of parameter servers."""
        return int(self.setting.partition("servers=")[2] or 0)


def planned(runs: int, folder: Path) -> list[ResourceRun]:
    """Return runs whose steps are neither too short for the hosts nor too long, evenly over models and settings.

    The plan is kept in ``folder``; a longer one begins with the shorter.
    """
    plan = folder / f"plan-{runs}.json"
    if not plan.exists():
        _in_a_copy(lambda: write_json(plan, [asdict(run) for run in _drawn(runs, folder)]), _PLANNING_S)
    return [ResourceRun(**row) for row in json.loads(plan.read_text(encoding="utf-8"))]


def _drawn(runs: int, folder: Path) -> Iterator[ResourceRun]:
    cells = list(product(MODELS, SETTINGS))
    everything = list(product(DEVICES, RATES, TARGETS_S))
    choices = {cell: sorted(everything, key=partial(_mixed, cell)) for cell in cells}
    seen: set[str] = set()
    found = turn = 0
    while found < runs and any(choices.values()):
        for cell in sorted(cells, key=lambda cell: _mixed(cell, turn)):
            while choices[cell] and found < runs:
                run = _run_of(cell, choices[cell].pop(0), folder)
                if run is not None and run.name not in seen:
                    seen.add(run.name)
                    found += 1
                    yield run
                    break
        turn += 1


def _mixed(*values: object) -> str:
    """A key that sorts in an order which looks random and is always the same."""
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _run_of(cell: tuple[str, str], choice: tuple[str, str, float], folder: Path) -> ResourceRun | None:
    """The run whose workers compute about as long as the choice says, or ``None`` if its steps do not suit."""
    device, rate, target_s = choice
    run = ResourceRun(model=cell[0], setting=cell[1], device=device, rate=rate, batch=1, steps=1)
    if not run.servers:  # the hosts of all ranks share the cores
        least_s = 1.3 * _computed(run.model, device, 1, folder)[1] * _HOST_S
        target_s = max(target_s, least_s * max(1.0, run.workers / (os.cpu_count() or 1)))
    low, high = 0, _MOST_BATCH.bit_length() - 1
    while low < high:  # the smallest power of two that computes long enough
        middle = (low + high) // 2
        enough = _computed(run.model, device, 2**middle, folder)[0] >= target_s / math.sqrt(2.0)
        low, high = (low, middle) if enough else (middle + 1, high)
    run = replace(run, batch=2**low)
    step_s = _forecast(run, folder).report.step_s
    if not _SHORTEST_STEP_S <= step_s <= _LONGEST_STEP_S:
        return None
    return replace(run, steps=min(_MOST_STEPS, max(_FEWEST_STEPS, math.ceil(_OBSERVED_S / step_s))))


@cache
def _computed(model: str, device: str, batch: int, folder: Path) -> tuple[float, int]:
    """Seconds that a worker computes in a step, and the operators of a step."""
    run = ResourceRun(model=model, setting="dp=2", device=device, rate="1Gbit", batch=batch, steps=1)
    forecast = _forecast(run, folder)
    return forecast.report.compute_s, sum(count for _, count in forecast.request.graph)


@cache
def _cluster(text: str, path: Path) -> Cluster:
    from traincast.cluster import load_cluster

    write_text(path, text)
    return load_cluster(str(path), hosts=True)


@cache
def _graph(model: str) -> OperatorGraph:
    from traincast.graph.load import load_model

    return load_model(model, use_cache=True)


def _forecast(run: ResourceRun, folder: Path) -> Forecast:
    from traincast.forecast import predict
    from traincast.testbed.run import cluster_text

    request = request_of(run)
    return predict(
        _graph(request.model),
        cluster=_cluster(cluster_text(request), folder / "cluster.toml"),
        global_batch=request.global_batch,
        strategy=request.strategy,
        precision="fp32",
        runtime="gloo",
        use_cache=True,
    )


def request_of(run: ResourceRun) -> RunRequest:
    """The request of a run."""
    from traincast.testbed.request import RunRequest

    return RunRequest(
        model=MODELS[run.model],
        ranks=run.workers,
        strategy=run.setting,
        global_batch=run.batch * run.workers,
        compute=run.device,
        network=run.rate,
        steps=run.steps,
        warmup=2,
        monitor_hz=HZ,
    )


def measure(run: ResourceRun, folder: Path) -> None:
    """Run once, with ranks that are copies of this process, and keep the folder of the run."""
    from benchmarks.forked import start_forked
    from traincast.testbed.run import run as run_testbed

    _in_a_copy(lambda: run_testbed(request_of(run), folder / run.name, start=start_forked, traced=False))
    (folder / run.name / "spans.parquet").unlink()  # larger than all readings


def _in_a_copy(act: Callable[[], object], patience_s: float = _PATIENCE_S) -> None:
    """Act in a copy of this process; raises if that fails or takes too long."""
    from benchmarks.forked import ForkedProcess

    copy = ForkedProcess(act)
    try:
        code = copy.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        copy.kill()
        raise
    if code:
        raise RuntimeError(f"exit code {code}")


def prepare(folder: Path) -> None:
    """Load what ranks need, so that their copies have it. Graphs are captured in copies: this process must not."""
    first = ResourceRun(model="gpt", setting="dp=2,servers=1", device="k80", rate="1Gbit", batch=8, steps=1)
    _in_a_copy(lambda: _forecast(first, folder), _PLANNING_S)
    for name in ("pandas", "torch._dynamo", "traincast.testbed.rank.serving", "traincast.testbed.rank.worker"):
        importlib.import_module(name)
    _forecast(first, folder)  # loads bundles, and what is compiled


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything that is not done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=450)
    given = parser.parse_args(arguments)
    make_folder(given.output)
    runs = planned(given.runs, given.output)
    prepare(given.output)
    for number, run in enumerate(runs):
        if (given.output / run.name / "run.json").exists():
            continue
        begin = time.monotonic()
        try:
            measure(run, given.output)
            print(f"{number + 1} of {len(runs)} · {run.name}: {time.monotonic() - begin:.1f} s", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{number + 1} of {len(runs)} · {run.name}: failed ({error})", flush=True)


if __name__ == "__main__":
    main()
