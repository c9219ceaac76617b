"""Measure collectives over message sizes, group sizes and placements of a group on nodes.

All ranks go through the same list of cases; ranks outside a case's group wait. Rank 0 says which case is next and
collects the times, both as JSON through the store of the process group. Rank 0 writes the table.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from traincast.errors import RequestError
from traincast.graph.capture.capture import require_torch
from traincast.profiling.collectives.cases import (
    CollectiveCase,
    CollectiveRequest,
    GroupPlacement,
    bus_factor,
    cases_of,
    elements_of,
)
from traincast.profiling.machine.device import device_name
from traincast.profiling.output import Profile, ProfileOutput, Progress, Unmeasured, check_output
from traincast.profiling.rows import ISOLATED, Row
from traincast.profiling.timing import SUSPECT_DISPERSION, Timing, clock_of

SIZE: Final = 384
"""Rows and columns of the matrices: a product takes about a millisecond on a processor core."""


@contextmanager
def computing(device: str) -> Iterator[None]:
    """Multiply matrices in a thread of this process as long as the context lasts; on a GPU, in a stream of its own."""
    import torch

    stop, started = threading.Event(), threading.Event()

    def run() -> None:
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            a, out = torch.ones(SIZE, SIZE, device=device), torch.empty(SIZE, SIZE, device=device)
            while not stop.is_set():
                torch.mm(a, a, out=out)
                if stream is not None:
                    stream.synchronize()
                started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Run: TypeAlias = Callable[[], object]
STAT: Final = "median, max over ranks"
DTYPE: Final = "float"
_WAIT: Final = timedelta(hours=2)
_WARMUP: Final = 3


def torchrun_line(arguments: Sequence[str], *, ranks: int = 4) -> str:
    """The command that runs ``traincast`` with ``arguments`` on ``ranks`` local processes."""
    return f"torchrun --nproc-per-node {ranks} -m traincast {' '.join(arguments)}"


def is_launched() -> bool:
    """Whether a launcher such as ``torchrun`` has told this process its rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def check_backend(backend: str) -> None:
    """Refuse a backend that this machine cannot run."""
    require_torch()
    import torch

    if backend == "nccl" and not torch.cuda.is_available():
        raise RequestError(f"--backend nccl: PyTorch {torch.__version__} sees no GPU here; use --backend gloo")


def profile_collectives(
    request: CollectiveRequest, output: Path, *, progress: Progress | None = None
) -> Profile | None:
    """Measure ``request`` into the table ``output`` with all ranks of a launcher; ``None`` on all ranks but 0."""
    if not is_launched():
        raise RequestError("collectives need several processes: start them with torchrun, or use --local N")
    check_backend(request.backend)
    device = "cuda" if request.backend == "nccl" else "cpu"
    check_output(output, table="collectives")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(request.threads)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(request.backend, timeout=_WAIT)
    try:
        ring = _Ring(request, device)
        if ring.rank == 0:
            return ring.lead(output, progress or (lambda done, total, what: None))
        ring.follow()
        return None
    finally:
        dist.destroy_process_group()


def collective_identity(row: Row) -> str:
    """A text that is equal for rows of the same measurement."""
    names = ("source", "system", "device", "collective", "bytes", "n_ranks", "n_nodes", "library", "interconnect")
    pattern = [f"{name}={row[name]}" for name, usual in ISOLATED.items() if row[name] != usual]
    return "|".join([*(str(row[name]) for name in names), *pattern])


class _Ring:
    """All ranks of a launch, seen from one of them."""

    def __init__(self, request: CollectiveRequest, device: str) -> None:
        import torch.distributed as dist

        self.request = request
        self.device = device
        self._turn = 0
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.store = dist.PrefixStore("traincast", dist.distributed_c10d._get_default_store())
        self.store.set_timeout(_WAIT)
        self.store.set(f"node/{self.rank}", os.environ.get("GROUP_RANK", "") + "/" + platform.node())
        self.nodes = [self.store.get(f"node/{rank}").decode() for rank in range(self.size)]
        too_large = [group for group in request.groups if group > self.size]
        if too_large:
            raise RequestError(
                f"a group of {too_large[0]} ranks does not fit {self.size} processes: start more processes"
            )
        self.cases = cases_of(request, self.nodes)
        if not self.cases:
            raise RequestError(
                f"no group of {', '.join(map(str, request.groups)) or 2} ranks can be formed from {self.size} ranks"
            )
        self.groups = {p: dist.new_group(list(p.ranks)) for p in dict.fromkeys(p for c in self.cases for p in c.groups)}

    def lead(self, output: Path, progress: Progress) -> Profile:
        """Rank 0: say which case is next, take part in it, gather the times, keep the rows."""
        end = None if self.request.time_limit_s is None else time.monotonic() + self.request.time_limit_s
        reasons: dict[tuple[str, str], int] = {}
        left = 0
        try:
            with ProfileOutput(output, table="collectives", identity=collective_identity) as table:
                kept = len(table.rows)
                for number, case in enumerate(self.cases):
                    progress(number, len(self.cases), case.collective)
                    if table.has(collective_identity(self._row(case, None))):
                        continue
                    if end is not None and time.monotonic() > end:
                        left += 1
                        continue
                    row, reason = self._lead_case(number, case)
                    if row is not None:
                        table.add(row)
                    else:
                        reasons[case.collective, reason] = reasons.get((case.collective, reason), 0) + 1
                progress(len(self.cases), len(self.cases), "")
                rows, warnings = table.rows, tuple(table.warnings)
                table.finish()
        finally:
            self.store.set(f"next/{self._turn}", "-1")
        return Profile(
            output=output,
            rows=tuple(rows),
            failures=tuple(Unmeasured(what=w, reason=r, count=n) for (w, r), n in reasons.items()),
            measured=len(rows) - kept,
            kept=kept,
            left=left,
            warnings=warnings,
        )

    def _lead_case(self, number: int, case: CollectiveCase) -> tuple[Row | None, str]:
        self.store.set(f"next/{self._turn}", str(number))
        results = {0: self._take_part(case)} if 0 in case.ranks else {}
        for rank in case.ranks:
            if rank != 0:
                results[rank] = json.loads(self.store.get(f"result/{self._turn}/{rank}"))
        self._turn += 1
        failed = next((str(r["error"]) for r in results.values() if "error" in r), None)
        if failed is not None:
            return None, failed
        slowest = max(results.values(), key=lambda r: float(r["median_s"]))
        return self._row(case, Timing(**slowest)), ""

    def follow(self) -> None:
        """Run as any other rank: take part in the cases that rank 0 announces, until it announces the end."""
        while True:
            number = int(self.store.get(f"next/{self._turn}"))
            if number < 0:
                return
            case = self.cases[number]
            if self.rank in case.ranks:
                self.store.set(f"result/{self._turn}/{self.rank}", json.dumps(self._take_part(case)))
            self._turn += 1

    def _take_part(self, case: CollectiveCase) -> dict[str, Any]:
        """Run one case; return the times of this rank, or why it cannot be run."""
        import torch

        mine = next(group for group in case.groups if self.rank in group.ranks)
        try:
            run = _call_of(replace(case, placement=mine), self.groups[mine], self.device)
            with computing(self.device) if case.computing else nullcontext():
                if case.beside:
                    self._meet(len(case.ranks))
                # Every rank must make the same number of runs, so no rank may stop early or time several as one.
                samples = _timed(run, self.request.repeats, self.device)
        except (RuntimeError, NotImplementedError, ValueError, torch.cuda.OutOfMemoryError) as error:
            return {"error": " ".join(str(error).split())[:160]}
        share = 0.5 if case.collective == "p2p" else 1.0  # there and back is two messages
        timing = Timing.of([sample * share for sample in samples])
        return {
            "median_s": timing.median_s,
            "min_s": timing.min_s,
            "dispersion": timing.dispersion,
            "count": timing.count,
        }

    def _meet(self, count: int) -> None:
        """Wait until ``count`` ranks are here, so that groups without a common rank start together."""
        here = f"meet/{self._turn}"
        if self.store.add(here, 1) == count:
            self.store.set(f"{here}/all", "1")
        self.store.get(f"{here}/all")

    def _row(self, case: CollectiveCase, timing: Timing | None) -> Row:
        n, seconds = len(case.placement.ranks), timing.median_s if timing else 1.0
        request = self.request
        one_node = case.placement.num_nodes == 1
        isolated = not (case.computing or case.beside)
        return {
            "source": request.source,
            "system": request.system or platform.node() or "local",
            "device": device_name(self.device, threads=request.threads),
            "collective": case.collective,
            "bytes": case.nbytes,
            "n_ranks": n,
            "n_nodes": case.placement.num_nodes,
            "ranks_per_node": n // case.placement.num_nodes,
            "interconnect": request.interconnect or _usual_interconnect(request.backend, one_node=one_node),
            "library": library_name(request.backend),
            "dtype": DTYPE,
            "variant": case.placement.variant,
            "stat": STAT,
            "time_us": seconds * 1e6,
            "busbw_GBps": case.nbytes * bus_factor(case.collective, n) / seconds / 1e9,
            # Times that differ from run to run are a mistake in isolation, and what is measured under a pattern.
            "suspect": isolated and timing is not None and timing.dispersion > SUSPECT_DISPERSION,
            "dispersion": timing.dispersion if timing else 0.0,
            "n_meas": timing.count if timing else 0,
            "time_us_min": timing.min_s * 1e6 if timing else 0.0,
            "beside_compute": case.computing,
            "concurrent_groups": len(case.groups),
            "node_set": self._node_set(case.placement) if request.node_sets > 1 else "",
        }

    def _node_set(self, placement: GroupPlacement) -> str:
        """The numbers of a group's nodes, in the order in which ranks first name them: ``0+2``."""
        numbers = {node: i for i, node in enumerate(dict.fromkeys(self.nodes))}
        return "+".join(str(n) for n in sorted({numbers[self.nodes[rank]] for rank in placement.ranks}))


def library_name(backend: str) -> str:
    """``NCCL 2.26.2``, or ``gloo (torch.distributed 2.13.0)``."""
    import torch

    if backend == "nccl":
        return "NCCL " + ".".join(str(part) for part in torch.cuda.nccl.version())
    return f"gloo (torch.distributed {str(torch.__version__).partition('+')[0]})"


def _usual_interconnect(backend: str, *, one_node: bool) -> str:
    if backend == "gloo":
        return "TCP loopback" if one_node else "TCP"
    return "within node" if one_node else "between nodes"


def _timed(run: Run, repeats: int, device: str) -> list[float]:
    clock = clock_of(device)
    for _ in range(_WARMUP):
        clock.seconds(run, 1)
    return [clock.seconds(run, 1) for _ in range(repeats)]


def _call_of(case: CollectiveCase, group: Any, device: str) -> Run:
    """Return a function that runs the collective once on this rank's buffers."""
    import torch
    import torch.distributed as dist

    ranks = case.placement.ranks
    n = len(ranks)
    elements = elements_of(case.collective, case.nbytes, n)
    data = torch.ones(elements, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    match case.collective:
        case "all_reduce":
            return lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group)
        case "all_gather":
            whole = torch.empty(elements * n, device=device)
            return lambda: gather(whole, data, group=group)
        case "reduce_scatter":
            part = torch.empty(elements // n, device=device)
            return lambda: scatter(part, data, group=group)
        case "all_to_all":
            received = torch.empty(elements, device=device)
            return lambda: dist.all_to_all_single(received, data, group=group)
        case "broadcast":
            return lambda: dist.broadcast(data, src=ranks[0], group=group)
        case _:
            return _there_and_back(data, ranks, group)


def _there_and_back(data: Any, ranks: tuple[int, ...], group: Any) -> Run:
    import torch.distributed as dist

    first, second = ranks
    if dist.get_rank() == first:

        def run() -> None:
            dist.send(data, second, group=group)
            dist.recv(data, second, group=group)

    else:

        def run() -> None:
            dist.recv(data, first, group=group)
            dist.send(data, first, group=group)

    return run


def summary_of_collectives(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """For each collective, group and pattern: number of rows, median dispersion, best bus bandwidth in bytes/s."""
    groups: defaultdict[tuple[str, int, int, bool, int], list[Row]] = defaultdict(list)
    for row in rows:
        pattern = (row["beside_compute"], row["concurrent_groups"])
        groups[row["collective"], row["n_ranks"], row["n_nodes"], *pattern].append(row)
    return [
        {
            "collective": collective,
            "n_ranks": n_ranks,
            "n_nodes": n_nodes,
            "beside_compute": beside_compute,
            "concurrent_groups": concurrent_groups,
            "n": len(group),
            "suspect": sum(bool(row["suspect"]) for row in group),
            "median_dispersion": sorted(row["dispersion"] for row in group)[len(group) // 2],
            "least_s": min(row["time_us"] for row in group) * 1e-6,
            "best_bytes_per_s": max(row["busbw_GBps"] for row in group) * 1e9,
        }
        for (collective, n_ranks, n_nodes, beside_compute, concurrent_groups), group in sorted(groups.items())
    ]
