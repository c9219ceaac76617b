"""How long a user waits for an answer: commands timed in cold processes."""

from __future__ import annotations

from benchmarks.timing import Cost, empty_cache, run, table

_LLAMA = ["predict", "llama3-8b", "--cluster", "dgx-h100:4", "--strategy", "dp=8,tp=4", "--global-batch", "256"]
_LARGE = ["predict", "llama3-405b", "--cluster", "dgx-h100:2048", "--strategy", "dp=128,tp=8,pp=16"]


def main() -> None:
    """Time the command line, with and without a captured graph at hand; the cached run is the baseline."""
    cache = empty_cache()
    run(["--help"])
    rows = [_row("--help", run(["--help"]), "0.3 s CPU")]
    shipped = min((run(_LLAMA, cache=empty_cache()) for _ in range(3)), key=lambda c: c.wall_s)
    other = [*_LLAMA, "--seq", "4096"]
    cold = min((run(other, cache=empty_cache()) for _ in range(3)), key=lambda c: c.wall_s)
    run(other, cache=cache)
    warm = min((run(other, cache=cache) for _ in range(3)), key=lambda c: c.wall_s)
    rows.append(_row("predict llama3-8b, graph shipped", shipped, "0.8 s CPU"))
    rows.append(_row("predict llama3-8b --seq 4096, graph not cached", cold, "4 s"))
    rows.append(_row("predict llama3-8b --seq 4096, graph cached", warm, "1.5 s"))
    large = [*_LARGE, "--global-batch", "2048"]
    rows.append(_row("predict llama3-405b on 16,384 devices, not cached", run(large, cache=cache), "5 s, 1 GB"))
    rows.append(_row("predict llama3-405b on 16,384 devices, cached", run(large, cache=cache), "5 s, 1 GB"))
    rows.append(_row("capture gpt3-175b", run(["capture", "gpt3-175b", "-o", f"{cache}/g.json"]), "10 s, 1 GB"))
    table("cold processes", ("command", "wall", "CPU", "peak memory", "to reach"), rows)
    print(f"  a captured graph saves {cold.wall_s - warm.wall_s:.2f} s of {cold.wall_s:.2f} s")


def _row(name: str, cost: Cost, goal: str) -> tuple[str, ...]:
    return (name, f"{cost.wall_s:.2f} s", f"{cost.cpu_s:.2f} s", f"{cost.peak_bytes / 1e9:.2f} GB", goal)


if __name__ == "__main__":
    main()
