"""What a cluster file says about this machine, measured: rates, bandwidths, the cost of a launch, and the link.

Every figure is the best of its repeats, as in STREAM and LINPACK: what the machine can do, not what its other users
leave. The spread of the repeats (interquartile range over median) stands beside it. The same calls run on a processor
and on a GPU; a GPU is timed with events on its stream. No GPU was at hand where this was written: that is untested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from traincast.ask import verb
from traincast.errors import RequestError
from traincast.graph.capture.capture import require_torch
from traincast.profiling.machine.ask import MachineAsk
from traincast.profiling.machine.device import check_device, device_name, free_memory
from traincast.profiling.machine.loopback import LARGE_BYTES, START_S, measure_pair
from traincast.profiling.timing import Clock, HostClock, Timing, clock_of, measure

PRODUCTS: Final = {"cpu": (256, 512, 1024, 1536), "cuda": (2048, 4096, 8192)}
"""Sides of the square products whose best rate is the peak."""
CONVOLUTIONS: Final = ((64, 56, 3), (128, 28, 3), (256, 14, 3), (256, 28, 1))
"""Channels, height and width, and kernel of the convolutions that are timed."""
COPIES: Final = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 512 << 20)
"""Working sets of the copies, in bytes: the largest gives the memory's bandwidth, the others show the cache."""
CACHED: Final = 1.4
"""A working set is in the cache if copies in it are this much faster than in memory."""
DTYPES: Final = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}
_SLOWEST: Final = 0.1
"""A dtype below this share of fp32's rate is left out: it then runs as a wider one would."""
_LIMIT_S: Final = 2.0
"""Seconds after which the repeats of one measurement end."""
_LEAST_LAUNCHES: Final = 200
_BATCH: Final = 4
_HEADS: Final = (2, 512, 128)
"""Heads, sequence and head dim of the attention that is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure in SI units: its name, value, unit, the relative spread of its repeats, and a note."""

    name: str
    value: float
    unit: str
    spread: float
    note: str = ""


@dataclass(slots=True)
class MachineFigures:
    """All figures of one machine; ``facts`` are what the system states, ``rates`` FLOP/s by dtype."""

    device: str
    threads: int
    figures: list[Figure] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def value(self, name: str) -> float:
        """Return the value of a figure."""
        return next(figure.value for figure in self.figures if figure.name == name)

    def has(self, name: str) -> bool:
        """Return whether a figure was measured."""
        return any(figure.name == name for figure in self.figures)


def expected_seconds(ask: MachineAsk) -> float:
    """Return how long :func:`measure_machine` will take, from one short product and one short copy."""
    device = ask.device
    check_device(device)
    import torch

    torch.set_num_threads(ask.threads)
    clock = clock_of(device)
    x = torch.ones(256, 256, device=device)
    rate = 2 * 256**3 / measure(lambda: x @ x, clock=clock, repeats=3).median_s
    data = torch.zeros(1 << 20, device=device)
    per_byte = measure(data.clone, clock=clock, repeats=3).median_s / (data.nbytes * 2)
    products = [2.0 * side**3 / rate * slower for side in PRODUCTS[device] for slower in (1, 2, 2, 2)]
    convolutions = [6.0 * _BATCH * c * c * s * s * k * k / rate for c, s, k in CONVOLUTIONS]
    copies = [nbytes * per_byte for nbytes in COPIES]
    works = sum(min(_LIMIT_S, once * (ask.repeats + 3)) for once in (*products, *convolutions, *copies))
    return float(works + START_S)


@verb(MachineAsk)
def measure_machine(ask: MachineAsk) -> MachineFigures:
    """Measure this machine with processes of ``threads`` threads, or its GPUs."""
    device, threads, repeats = ask.device, ask.threads, ask.repeats
    check_device(device)
    cores = _cores()
    if device == "cpu" and threads > cores:
        raise RequestError(f"--threads {threads}: this machine has {cores} cores")
    require_torch()
    import torch

    torch.set_num_threads(threads)
    found = MachineFigures(device=device, threads=threads)
    found.facts = _facts(device, threads)
    clock = clock_of(device)

    def timed(call: Callable[[], object], on: Clock = clock) -> Timing:
        return measure(call, clock=on, repeats=repeats, seconds=_LIMIT_S)

    found.figures += _products(found, timed)
    found.figures += _convolutions(found, timed)
    found.figures += _attention(found, timed)
    found.figures += _copies(found, timed)
    found.figures += _launches(found, timed)
    found.figures += _link(found, repeats)
    return found


def _facts(device: str, threads: int) -> dict[str, Any]:
    """What the system says, without measurement."""
    import torch

    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    facts: dict[str, Any] = {"name": device_name(device, threads=threads), "host_memory_bytes": total}
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        facts |= {
            "devices": torch.cuda.device_count(),
            "memory_bytes": float(about.total_memory),
            "num_sms": int(about.multi_processor_count),
            "cache_bytes": float(getattr(about, "L2_cache_size", 0) or 4 << 20),
            "clock_hz": float(getattr(about, "clock_rate", 0) or 1.4e6) * 1e3,
            "capability": f"{about.major}.{about.minor}",
        }
        return facts
    devices = max(1, _cores() // threads)
    return facts | {
        "devices": devices,
        "cores": _cores(),
        "memory_bytes": total / devices,
        "num_sms": threads,
        "cache_bytes": _cache_bytes(),
        "clock_hz": _clock_hz(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_bytes() -> float:
    """The last-level cache that the system states; 0 if it states none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            said = re.fullmatch(r"(\d+)([KM]?)", path.read_text(encoding="ascii").strip())
        except OSError:
            continue
        if said:
            sizes.append(float(said[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[said[2]])
    return max(sizes, default=0.0)


def _clock_hz() -> float:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    said = re.search(r"^cpu MHz\s*:\s*([\d.]+)$", text, re.M)
    return float(said[1]) * 1e6 if said else 2.5e9


Timed: TypeAlias = Callable[..., Timing]


def _products(found: MachineFigures, timed: Timed) -> Iterator[Figure]:
    """The best rate of square products, by dtype."""
    import torch

    for name, kind in DTYPES.items():
        best, best_side, spread = 0.0, 0, 0.0
        for side in PRODUCTS[found.device]:
            x = torch.ones(side, side, dtype=getattr(torch, kind), device=found.device)
            try:
                timing = timed(lambda x=x: x @ x)
            except RuntimeError:  # the dtype has no product here
                break
            if (rate := 2.0 * side**3 / timing.min_s) > best:
                best, best_side, spread = rate, side, timing.dispersion
            if found.rates and best < _SLOWEST * found.rates["fp32"]:
                break
        if best and (not found.rates or best >= _SLOWEST * found.rates["fp32"]):
            found.rates[name] = best
            yield Figure(name=f"product {name}", value=best, unit="FLOP/s", spread=spread, note=f"side {best_side}")
        else:
            found.assumed.append(f"{name}: slower than a tenth of fp32 here, so it is left out")


def _convolutions(found: MachineFigures, timed: Timed) -> Iterator[Figure]:
    """The rate of convolutions, forward and backward together, as a step runs them."""
    import torch

    rates, spreads = [], []
    for channels, side, kernel in CONVOLUTIONS:
        x = torch.ones(_BATCH, channels, side, side, device=found.device, requires_grad=True)
        w = torch.ones(channels, channels, kernel, kernel, device=found.device, requires_grad=True)

        def both(x: Any = x, w: Any = w, kernel: int = kernel) -> None:
            out = torch.conv2d(x, w, padding=kernel // 2)
            torch.autograd.grad(out, (x, w), out)

        timing = timed(both)
        rates.append(6.0 * _BATCH * channels**2 * side**2 * kernel**2 / timing.min_s)
        spreads.append(timing.dispersion)
    rates.sort()
    middle = (rates[1] + rates[2]) / 2
    yield Figure(
        name="convolution fp32",
        value=middle,
        unit="FLOP/s",
        spread=max(spreads),
        note="forward and backward, median of four shapes",
    )


def _attention(found: MachineFigures, timed: Timed) -> Iterator[Figure]:
    import torch

    heads, seq, dim = _HEADS
    dtype = torch.float32 if found.device == "cpu" else torch.float16
    q = torch.ones(_BATCH, heads, seq, dim, device=found.device, dtype=dtype, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    flops = 4.0 * _BATCH * heads * seq * seq * dim
    with torch.no_grad():
        timing = timed(lambda: attend(q, q, q))
    yield Figure(name="attention", value=flops / timing.min_s, unit="FLOP/s", spread=timing.dispersion)
    out = attend(q, q, q)
    grad = torch.ones_like(out)
    timing = timed(lambda: torch.autograd.grad(out, q, grad, retain_graph=True))
    yield Figure(name="attention backward", value=2.5 * flops / timing.min_s, unit="FLOP/s", spread=timing.dispersion)


def _copies(found: MachineFigures, timed: Timed) -> Iterator[Figure]:
    """The bandwidth of copies, read and written bytes, from the cache and from memory.

    The target is in use already. Operators whose results need new pages take longer on a processor.
    """
    import torch

    rates: dict[int, tuple[float, float]] = {}
    for nbytes in COPIES:
        if nbytes > free_memory(found.device) / 4:
            break
        source = torch.ones(nbytes // 8, device=found.device)
        target = torch.empty_like(source)
        timing = timed(lambda target=target, source=source: target.copy_(source))
        rates[nbytes] = nbytes / timing.min_s, timing.dispersion
    if not rates:
        raise RequestError("the machine has too little free memory to measure its bandwidth")
    memory, spread = rates[max(rates)]
    cached = [size for size, (rate, _) in rates.items() if rate >= CACHED * memory]
    yield Figure(name="memory bandwidth", value=memory, unit="bytes/s", spread=spread)
    if cached:
        rate, spread = rates[max(cached)]
        note = f"still {rate / memory:.1f} times as fast as memory"
        yield Figure(name="cache in effect", value=float(max(cached)), unit="bytes", spread=spread, note=note)


def _launches(found: MachineFigures, timed: Timed) -> Iterator[Figure]:
    """The time that the host needs for an operator on almost no data, and that of the shortest operator."""
    import torch

    tiny, out = torch.ones(8, device=found.device), torch.empty(8, device=found.device)

    def many() -> None:
        for _ in range(_LEAST_LAUNCHES):
            torch.add(tiny, tiny, out=out)

    timing = timed(many, HostClock())
    launch = timing.min_s / _LEAST_LAUNCHES
    yield Figure(name="launch", value=launch, unit="s", spread=timing.dispersion)
    if found.device == "cuda":
        torch.cuda.synchronize()
    weights = torch.ones(64, 64, device=found.device)
    vector = torch.ones(8, 64, device=found.device)
    timing = timed(lambda: torch.mm(vector, weights))
    yield Figure(name="shortest operator", value=timing.min_s, unit="s", spread=timing.dispersion)


def _link(found: MachineFigures, repeats: int) -> Iterator[Figure]:
    """Latency and bandwidth between two processes, and what they take from each other."""
    if found.facts["devices"] < 2:
        found.assumed.append("one device: the link inside the node is the catalog's")
        return
    pair = measure_pair(found.device, threads=found.threads, repeats=repeats)
    small, large = pair["small"], pair["large"]
    bandwidth = LARGE_BYTES / max(large.min_s - small.min_s, 1e-9)
    yield Figure(name="link latency", value=small.min_s, unit="s", spread=small.dispersion)
    yield Figure(name="link bandwidth", value=bandwidth, unit="bytes/s", spread=large.dispersion)
    for work in ("product", "copy"):
        beside, alone = pair[f"{work}_beside"], pair[work]
        yield Figure(
            name=f"{work} beside another",
            value=beside.min_s / alone.min_s,
            unit="×",
            spread=beside.dispersion,
            note="time of two processes at once over one alone; not in the file",
        )
