"""Compares strategies for one model on one cluster, and lists those that fit first, by step time."""

from traincast import RequestError, capture, predict

STRATEGIES = (
    "dp=32,zero=1",
    "dp=32,zero=3",
    "dp=16,tp=2,sp,zero=1",
    "dp=8,tp=4,sp,zero=1",
    "dp=4,tp=8,sp,zero=1",
    "dp=4,tp=4,pp=2,sp,zero=1",
    "dp=4,pp=8,vp=2,schedule=interleaved,zero=1",
    "dp=8,tp=3",
)

graph = capture("llama3-8b", use_cache=True)  # traced once, forecast many times
reports = {}
for strategy in STRATEGIES:
    try:
        reports[strategy] = predict(graph, cluster="dgx-h100:4", strategy=strategy, global_batch=256).report
    except RequestError as error:
        print(f"refused: {error}")

for strategy, report in sorted(reports.items(), key=lambda item: (not item[1].fits, item[1].step_s)):
    gib = report.peak_memory_bytes / 2**30
    verdict = "fits" if report.fits else "does not fit"
    waiting = (report.exposed_communication_s + report.bubble_s) / report.step_s
    print(
        f"{strategy:44} {report.step_s:6.2f} s  MFU {report.mfu:5.1%}  waits {waiting:5.1%}  {gib:5.1f} GiB {verdict}"
    )
