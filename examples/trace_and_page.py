"""Writes the timeline of every rank as a trace for Perfetto, and the report as one HTML page."""

import sys
from pathlib import Path

from traincast import predict
from traincast.report import write_page, write_trace

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
forecast = predict(
    "gpt:layers=16,hidden=2048,heads=16,seq=1024",
    cluster="dgx-a100",
    strategy="dp=2,pp=4,micro_batch=2",
    global_batch=32,
    use_cache=True,
)
events = write_trace(forecast.detailed(all_ranks=True), folder / "gpt.trace.json.gz")
write_page(forecast.report, forecast.timeline, folder / "gpt.html")

print(f"{events:,} events of 8 ranks in {folder / 'gpt.trace.json.gz'}: open it at https://ui.perfetto.dev")
print(f"page in {folder / 'gpt.html'}")
for rank in forecast.report.ranks:
    waits = rank.breakdown.bubble_s / forecast.report.step_s
    print(f"stage {rank.stage}: computes {rank.utilization:.0%}, waits for others {waits:.0%}")
