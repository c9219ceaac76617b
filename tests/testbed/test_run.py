"""Runs of the testbed: real processes, real messages, emulated compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from traincast import RequestError, TraincastError, capture, load_cluster
from traincast.estimate.events.file import read_rows
from traincast.testbed.compare import compare
from traincast.testbed.folder import read_run_folder
from traincast.testbed.rank.worker import counted_steps, wants_another
from traincast.testbed.request import RunRequest, rate_of
from traincast.testbed.run import _cannot_carry, _Measured, cluster_text, memory_of_run, run

LAYERS, HIDDEN, SEQ = 2, 64, 32
MODEL = f"llama:layers={LAYERS},hidden={HIDDEN},heads=4,vocab=128,seq={SEQ}"
ASKED = RunRequest(
    model=MODEL, ranks=2, strategy="dp=2,micro_batch=32", global_batch=64, compute="k80", steps=2, warmup=2
)


def spans_of(folder: Path, step: int = 0) -> pd.DataFrame:
    table = pq.read_table(folder / "spans.parquet").to_pandas()
    return table[table.step == step]


def trained(folder: Path, **changes: Any) -> pd.DataFrame:
    run(replace(ASKED, **changes), folder)
    return spans_of(folder)


def test_ddp_reduces_every_gradient_once(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run")
    parameters = sum(t.numel for b in capture(MODEL).blocks for _ in range(b.count) for t in _trained(b))
    reduced = spans[spans.label == "dp gradients"].groupby("rank").nbytes.sum()
    assert reduced.tolist() == [4.0 * parameters] * 2
    done = read_run_folder(tmp_path / "run")
    assert done.num_ranks == 2
    assert len(done.steps_s) == 2
    assert done.step_s == pytest.approx(sum(done.steps_s) / 2)
    assert done.compute == "k80"
    assert done.runtime == "gloo"
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "cluster.toml", "row.csv", "run.json", "spans.parquet", "trace.json.gz",
    }  # fmt: skip
    compared = compare(tmp_path / "run")
    busy = {c.name: c for c in compared.comparison.by_device[0].classes}
    for name, exactness in (("forward", 1e-6), ("backward", 5e-3)):  # backward begins before autograd has a node
        real, forecast = busy[name].measured, busy[name].predicted
        assert real is not None
        assert forecast is not None
        assert real.busy_s == pytest.approx(forecast.busy_s, rel=exactness)


def _trained(block: Any) -> list[Any]:
    graph = capture(MODEL)
    return [t for index in block.optimizer for t in graph.operators[index].parameters]


def test_fsdp_gathers_every_layer_and_scatters_its_gradients(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run", strategy="dp=2,zero=3,micro_batch=32")
    counts = spans[spans["rank"] == 0].label.value_counts()
    groups = LAYERS + 1  # and the root's
    assert counts["dp reduce_scatter"] == groups
    assert counts["dp all_gather"] == groups + LAYERS  # the root's parameters stay for backward


def test_a_pipeline_sends_every_microbatch_forward_and_back(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run", strategy="pp=2,num_microbatches=4,schedule=1f1b")
    sent = spans[spans.label.str.startswith("pp send")]
    assert sent.groupby(["rank", "label"]).size().to_dict() == {
        (0, "pp send activations"): 4,
        (1, "pp send gradients"): 4,
    }
    assert set(sent.nbytes) == {16.0 * SEQ * HIDDEN * 4.0}
    assert sorted(set(spans[spans.category == "forward"].microbatch)) == [0, 1, 2, 3]


def test_tensor_parallel_layers_reduce_twice_forward_and_twice_backward(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run", strategy="tp=2,micro_batch=64")
    reduced = spans[(spans["rank"] == 0) & (spans.label == "tp all_reduce")]
    assert len(reduced) == 4 * LAYERS
    assert set(reduced.nbytes) == {64.0 * SEQ * HIDDEN * 4.0}


def test_workers_push_to_servers_and_pull(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run", strategy="dp=2,servers=1", steps=4)
    moved = spans.groupby(["rank", "label"]).nbytes.sum()
    assert moved[0, "push"] == moved[1, "push"] == moved[0, "pull"] == moved[2, "update"] > 0.0


def test_ranks_measure_the_works_of_their_plan_between_the_steps(tmp_path: Path) -> None:
    strategy = "dp=2,pp=2,num_microbatches=4,schedule=1f1b"
    trained(tmp_path / "run", strategy=strategy, ranks=4, events=True)
    rows = {row["collective"]: row for row in read_rows(tmp_path / "run" / "events") if row["collective"]}
    assert {(name, row["num_ranks"]) for name, row in rows.items()} == {("all_reduce", 2), ("p2p", 2)}
    assert rows["p2p"]["nbytes"] == 8.0 * SEQ * HIDDEN * 4.0
    assert all(row["repeats"] >= 2 for row in rows.values())  # two groups in each of two rounds, at least half of them
    found = compare(tmp_path / "run").comparison
    assert found.events == str(tmp_path / "run" / "events")
    assert found.estimated_by["measured"] == pytest.approx(1.0)
    assert not any("no events" in warning for warning in found.warnings)


def test_events_of_real_compute_have_all_operators(tmp_path: Path) -> None:
    strategy = "dp=2,micro_batch=2"
    trained(tmp_path / "run", compute="real", global_batch=4, strategy=strategy, events=True)
    kinds = {row["kind"] for row in read_rows(tmp_path / "run" / "events")}
    assert kinds == {"operator", "collective", "launch", "interference"}
    assert compare(tmp_path / "run").comparison.estimated_by["measured"] == pytest.approx(1.0)


def test_servers_have_events_as_well(tmp_path: Path) -> None:
    trained(tmp_path / "run", strategy="dp=2,servers=1", steps=4, events=True)
    assert compare(tmp_path / "run").comparison.events == str(tmp_path / "run" / "events")


def test_both_ends_of_a_pipeline_add_up_the_gradients_of_tied_weights(tmp_path: Path) -> None:
    tied = f"gpt:layers={LAYERS},hidden={HIDDEN},heads=4,vocab=128,seq={SEQ}"
    spans = trained(tmp_path / "run", model=tied, strategy="pp=2,num_microbatches=4,schedule=1f1b")
    summed = spans[spans.label == "pp gradients of tied weights"]
    assert summed.groupby("rank").nbytes.sum().to_dict() == {0: 128 * HIDDEN * 4.0, 1: 128 * HIDDEN * 4.0}
    found = compare(tmp_path / "run").comparison
    assert not any("is only in" in warning for warning in found.warnings)
    for device in found.by_device:
        (tied_class,) = [each for each in device.classes if each.name == "pp gradients"]
        assert tied_class.predicted is not None
        optimizer = next(each for each in device.classes if each.name == "optimizer")
        assert optimizer.predicted is not None
        assert optimizer.predicted.start_s >= tied_class.predicted.end_s


def test_a_run_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincast.testbed.run.free_memory", lambda device: 1e9)
    with pytest.raises(RequestError, match=r"2 ranks needs about .* of memory, but 953\.7 MiB are free: use"):
        run(ASKED, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_memory_of_a_run_grows_with_its_ranks_and_with_what_really_runs(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(cluster_text(ASKED), encoding="utf-8")
    emulated, real, watched = (
        memory_of_run(replace(ASKED, **more), file)
        for more in ({}, {"compute": "real"}, {"compute": "real", "events": True})
    )
    assert 2 * 0.5e9 < emulated < real < watched


def test_a_disturbed_step_is_repeated() -> None:
    asked = replace(ASKED, steps=3, warmup=2)
    assert wants_another([0.0, 0.0], asked)
    assert not wants_another([0.0, 0.0, 0.01], asked)
    assert wants_another([0.0, 0.4, 0.01], asked)
    assert counted_steps([0.0, 0.4, 0.01, 0.0], asked) == [2, 4, 5]
    assert not wants_another([0.0, 0.4, 0.0, 0.4, 0.0, 0.4], asked)  # twice as many as asked for
    assert counted_steps([0.2, 0.25, 0.3], asked) == [2, 3, 4]  # ranks that share cores always wait for one another
    assert counted_steps([0.0, 0.4, 0.01], replace(asked, back_to_back=True)) == [2, 3, 4]


MEASURED = _Measured("dp=2", 1.0, [1.0, 1.0, 1.0], [], [], None, [])


@pytest.mark.parametrize(
    ("changes", "measured", "reason"),
    [
        ({}, {}, ""),
        ({"ranks": 8}, {}, "8 ranks on 2 cores: more than 3 for each core"),
        ({"ranks": 4, "compute": "real"}, {}, "4 threads of 4 ranks on 2 cores: real compute needs a core for each"),
        ({}, {"lost_share": 0.05}, "hosts delayed their emulated devices by 5.0% of a step, more than 3%"),
        ({"compute": "real"}, {"waited_share": 0.3}, "ranks waited for a core for 30% of a step"),
        ({}, {"waited_share": 0.3}, ""),
        ({}, {"steps_s": [1.0, 1.5, 1.0]}, "steps vary by 25%, more than 10%"),
    ],
)
def test_a_machine_that_cannot_carry_a_run_says_why(changes: Any, measured: Any, reason: str) -> None:
    found = _cannot_carry(replace(ASKED, **changes), MEASURED._replace(**measured), cores=2)
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_compute_really_runs(tmp_path: Path) -> None:
    spans = trained(tmp_path / "run", compute="real", global_batch=4, strategy="dp=2,micro_batch=2")
    assert set(spans.category) == {"forward", "backward", "optimizer", "communication"}
    assert (spans.end_s > spans.start_s).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 3}, "dp·tp·pp = 2 ranks, but --ranks is 3"),
        ({"strategy": "dp=2,zero=1"}, "zero=0 .DDP. and zero=3 .FSDP."),
        ({"strategy": "cp=2", "ranks": 1}, "not cp"),
        ({"strategy": "dp=2,pp=2,num_microbatches=4,schedule=gpipe", "ranks": 4}, "use schedule=1f1b"),
        ({"compute": "h1000"}, "unknown device"),
        ({"network": "fast"}, "expected a rate such as 1Gbit"),
        ({"link_rates": ((1, 1e6),)}, "on loopback"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(TraincastError, match=message):
        run(replace(ASKED, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_request_survives_json() -> None:
    asked = replace(ASKED, network="1Gbit", link_rates=((1, 2.5e7),), slow=((0, 1.5),))
    assert RunRequest.from_json(asked.to_json()) == asked


def test_a_rank_that_does_not_exist_has_no_link() -> None:
    with pytest.raises(RequestError, match="ranks go from 0 to 1"):
        replace(ASKED, slow=((2, 1.5),))


def test_the_cluster_of_a_run_has_one_node_for_each_rank_with_its_own_link(tmp_path: Path) -> None:
    asked = replace(ASKED, network="1Gbit", link_rates=((1, rate_of("200Mbit")),))
    file = tmp_path / "cluster.toml"
    file.write_text(cluster_text(asked), encoding="utf-8")
    cluster = load_cluster(str(file))
    assert cluster.num_devices == 2
    assert [part.inter_node.bandwidth for part in cluster.parts] == [1.25e8, 2.5e7]
