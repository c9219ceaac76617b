"""Compares your own cluster, described in a TOML file, with the machine that it resembles."""

from pathlib import Path

from traincast import capture, load_cluster, predict

own = load_cluster(str(Path(__file__).with_name("own_cluster.toml")))
print(f"{own.name}: {own.num_nodes} × {own.devices_per_node} {own.device.name}")

graph = capture("llama3-8b", use_cache=True)
for cluster in (own, load_cluster("dgx-h100:16")):
    forecast = predict(graph, cluster=cluster, strategy="dp=32,tp=4,zero=1", global_batch=512, tokens=10**12)
    report, job = forecast.report, forecast.report.job
    assert job is not None
    print(f"{cluster.name:10} step {report.step_s:.2f} s, 1e12 tokens {job.job_s / 86400:.1f} d, ${job.cost:,.0f}")
