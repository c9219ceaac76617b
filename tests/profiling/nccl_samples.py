"""Logs as nccl-tests and rccl-tests print them, made from a law, and ways in which copying mangles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
COLUMNS = {
    "all_reduce": ("sum", "-1"),
    "all_gather": ("none", "-1"),
    "reduce_scatter": ("sum", "-1"),
    "alltoall": ("none", "-1"),
    "broadcast": ("none", "0"),
    "reduce": ("sum", "0"),
    "sendrecv": ("sum", "-1"),
}
SIZES = (1024, 65536, 1048576, 67108864, 1073741824)


def seconds(size: int) -> float:
    """The law behind all samples: 20 µs and 100 GB/s."""
    return 20e-6 + size / 100e9


def number(value: float) -> str:
    """A figure in seven characters, as the tests print it."""
    return f"{value:.2f}" if value < 1000 else f"{value:.1f}" if value < 1e5 else f"{value:.0f}"


def row(test: str, size: int, ranks: int, *, root: bool = True, redop: bool = True, wrong: str = "0") -> str:
    parts = ranks if test in ("all_gather", "reduce_scatter", "alltoall") else 1
    bandwidth = size / seconds(size) / 1e9
    body = (
        f"{number(seconds(size) * 1e6):>9}{number(bandwidth):>8}{number(bandwidth * FACTORS[test](ranks)):>8}{wrong:>7}"
    )
    in_place = body if test not in ("sendrecv", "alltoall") else body[: -len(wrong)] + "N/A"
    kinds = [COLUMNS[test][0]] * redop + [COLUMNS[test][1]] * root
    return f"{size:>12}{size // 4 // parts:>14}{'float':>10}{''.join(f'{kind:>8}' for kind in kinds)}{body}{in_place}"


def header(*, root: bool = True, redop: bool = True) -> list[str]:
    kinds = ["redop"] * redop + ["root"] * root
    half = "     time   algbw   busbw #wrong"
    return [
        "#                                                              out-of-place                       in-place",
        f"#       size         count      type{''.join(f'{kind:>8}' for kind in kinds)}{half}{half}",
        "#        (B)    (elements)               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]


def device_list(ranks: int, nodes: int, device: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    each = ranks // nodes
    line = "#  Rank {:2d} Group  0 Pid {:6d} on {:>10} device {:2d} [0x{:02x}] {}"
    return ["# Using devices"] + [
        line.format(r, 100 + r, f"node{r // each}", r % each, r % each, device) for r in range(ranks)
    ]


def log(test: str = "all_reduce", ranks: int = 16, nodes: int = 2, sizes: Sequence[int] = SIZES) -> list[str]:
    """A whole log, line by line."""
    return [
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1",
        "#",
        *device_list(ranks, nodes),
        "#",
        *header(),
        *(row(test, size, ranks) for size in sizes),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 31.4159",
    ]


def wrapped(lines: Sequence[str], width: int = 80) -> list[str]:
    """Lines as a terminal of ``width`` columns shows them."""
    return [line[i : i + width] for line in lines for i in range(0, max(1, len(line)), width)]
