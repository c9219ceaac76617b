"""A table of runs becomes a bundle, and a bundle becomes figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fitting.inspector.conftest import MODELS, request_for, toy_runs
from tests.resources.told import told
from traincast import FileFormatError, RequestError, learned_cost_model, simulate_resources
from traincast.engines import local_engine
from traincast.estimate.bundle import load_bundle, save_bundle
from traincast.estimate.inspector.bundle import expected_sizes, inspector_path, load_inspector, save_inspector
from traincast.estimate.inspector.grouping import Grouping
from traincast.fitting.inspector.fit import ResourceFit, family_of, fit_resources, folds
from traincast.fitting.inspector.make import DRIPLE, drawn, simulated_row, simulated_uses
from traincast.fitting.inspector.runs import COLUMNS, cluster_of, read_runs, use_columns, write_runs
from traincast.fitting.inspector.train import InspectorTraining, default_shape
from traincast.resources.inspected import setting_of

pytest.importorskip("torch")
QUICK: dict[str, Any] = {
    "shape": default_shape(hidden=12),
    "grouping": Grouping(method="uniform", groups=6),
    "config": InspectorTraining(epochs=40, batch=16),
}


def rows(count: int = 48) -> list[dict[str, Any]]:
    """The toy runs as rows of a table."""
    return [
        {
            "model": run.model,
            "global_batch": run.request.global_batch,
            "strategy": "dp=2",
            "device": "v100-pcie-16gb",
            "devices_per_node": 2,
            "precision": "fp32",
            "setting": run.setting,
            "step_s": run.step_s,
            **use_columns(run.uses),
        }
        for run in toy_runs(count)
    ]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> ResourceFit:
    folder = tmp_path_factory.mktemp("fit")
    write_runs(folder / "runs.csv.gz", rows())
    return fit_resources([folder / "runs.csv.gz"], output=folder / "bundle", rivals=True, **QUICK)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs.csv", rows(12))
    found, problems = read_runs([tmp_path / "runs.csv"])
    assert not problems
    assert [run.model for run in found] == [run.model for run in toy_runs(12)]
    assert found[3].uses == toy_runs(12)[3].uses
    assert found[0].request.cluster.device.name == "v100-pcie-16gb"
    assert (tmp_path / "runs.csv").read_text().splitlines()[0] == ",".join(COLUMNS)


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    wrong = [{**rows(1)[0], **change} for change in ({"model": "nothing"}, {"send_pattern": "odd"}, {"device": ""})]
    write_runs(tmp_path / "runs.csv", [*rows(2), *wrong])
    found, problems = read_runs([tmp_path / "runs.csv"])
    assert len(found) == 2
    assert ["nothing" in problems[0], "'odd'" in problems[1], "a cluster, or a device" in problems[2]] == [True] * 3
    write_runs(tmp_path / "bad.csv", wrong)
    with pytest.raises(FileFormatError, match="no run can be read"):
        read_runs([tmp_path / "bad.csv"])


def test_a_fit_is_judged_on_families_it_did_not_see(fitted: ResourceFit) -> None:
    said = fitted.to_dict()
    assert said["held_out"].endswith("of other families of models")
    assert set(said["rivals"]) == {"mean", "LightGBM"}
    assert set(said["scores"]) == {"compute", "memory", "receive", "send"}
    assert set(said["scores"]["compute"]) == {"burst_amount"}  # always busy: it has no bursts
    assert fitted.bundle.joinpath("weights.safetensors").stat().st_size < 2e6


def test_a_bundle_predicts_what_the_fit_predicts(fitted: ResourceFit) -> None:
    loaded = load_inspector(fitted.bundle)
    request = request_for("resnet18", 16)
    uses, low, high = loaded.uses(request.graph, setting_of(request))
    assert uses == fitted.model.uses(request.graph, setting_of(request))[0]
    assert uses["compute"].pattern == "busy"
    for name in ("memory", "receive", "send"):
        assert 0.0 < told(low[name].burst_s) <= told(uses[name].burst_s) <= told(high[name].burst_s)
        assert told(high[name].burst_amount) <= 1.0
    assert loaded.warnings(request.graph, setting_of(request)) == ()
    large = request_for("resnet18", 2**18)
    assert "batch" in loaded.warnings(large.graph, setting_of(large))[0]


def test_an_inspector_is_adapted_to_another_table(fitted: ResourceFit, tmp_path: Path) -> None:
    few = [
        {**row, **{f"{r}_burst_s": 2 * row[f"{r}_burst_s"] for r in ("memory", "receive", "send")}} for row in rows(24)
    ]
    write_runs(tmp_path / "few.csv", few)
    adapted = fit_resources(
        [tmp_path / "few.csv"], output=tmp_path / "new", start=fitted.bundle, config=InspectorTraining(epochs=40)
    )
    assert adapted.model.network.shape.late == 0.5
    row = few[1]
    request = request_for(row["model"], row["global_batch"])
    said = [made.model.uses(request.graph, setting_of(request))[0]["send"] for made in (fitted, adapted)]
    off = [abs(np.log(told(use.burst_s) / row["send_burst_s"])) for use in said]
    assert off[1] < 0.5 * off[0]
    with pytest.raises(RequestError, match="keeps the grouping of its base"):
        fit_resources([tmp_path / "few.csv"], output=tmp_path / "x", start=fitted.bundle, grouping=Grouping(factor=3))


def test_a_bundle_that_does_not_match_is_refused(fitted: ResourceFit, tmp_path: Path) -> None:
    bundle = load_bundle(fitted.bundle)
    arrays = bundle.arrays()
    save_bundle(tmp_path / "old", {**bundle.card, "features": 0}, arrays)
    with pytest.raises(FileFormatError, match="fitted to features 0"):
        load_inspector(tmp_path / "old")
    save_bundle(tmp_path / "wide", {**bundle.card, "shape": {**bundle.card["shape"], "hidden": 13}}, arrays)
    with pytest.raises(FileFormatError, match="does not match its card"):
        load_inspector(tmp_path / "wide")
    some = {name: array for name, array in arrays.items() if name != "scale.shift"}
    save_bundle(tmp_path / "less", bundle.card, some)
    with pytest.raises(FileFormatError, match=r"scale\.shift"):
        load_inspector(tmp_path / "less")
    text = json.loads((fitted.bundle / "card.json").read_text())
    (tmp_path / "less" / "card.json").write_text(json.dumps({**text, "seed": 1}))
    with pytest.raises(FileFormatError, match="does not match the hash"):
        load_inspector(tmp_path / "less")
    with pytest.raises(RequestError, match="inspector of resources"):
        learned_cost_model([fitted.bundle])


def test_the_sizes_of_a_bundle_are_those_of_the_network(fitted: ResourceFit) -> None:
    sizes = {name: array.shape for name, array in load_bundle(fitted.bundle).arrays().items()}
    assert sizes == expected_sizes(fitted.model.network.shape)


def test_a_bundle_keeps_all_members(fitted: ResourceFit, tmp_path: Path) -> None:
    network = fitted.model.network
    halved = {name: np.asarray(array / 2, np.float32) for name, array in network.weights.items()}
    save_inspector(tmp_path / "two", replace(fitted.model, network=replace(network, more=(halved,))), data={})
    found = load_inspector(tmp_path / "two").network.members
    assert len(found) == 2
    assert all(np.array_equal(found[1][name], array) for name, array in halved.items())


def test_folds_keep_families_and_settings_together() -> None:
    runs = toy_runs()
    for by, key in (("models", lambda r: family_of(r.model)), ("settings", lambda r: r.setting)):
        fold = folds(runs, by=by, number=3)  # type: ignore[arg-type]
        seen: dict[str, int] = {}
        assert all(seen.setdefault(key(run), int(f)) == f for run, f in zip(runs, fold, strict=True))
    assert family_of("resnet18") == family_of("resnet50") != family_of("vgg11")


def test_driples_settings_are_clusters_of_their_size() -> None:
    assert len(DRIPLE) == 14
    for setting in DRIPLE.values():
        row = {
            "device": setting["device"],
            "nodes": setting["nodes"],
            "devices_per_node": setting["workers"] // setting["nodes"],
        }
        assert cluster_of(row).num_devices == setting["workers"]


def test_drawn_runs_repeat_and_a_longer_list_begins_with_the_shorter() -> None:
    many = list(drawn(30, seed=4))
    assert list(drawn(10, seed=4)) == many[:10]
    assert list(drawn(10, seed=5)) != many[:10]
    assert {row["setting"] for row in many} & set(DRIPLE)


def test_simulated_runs_resume_from_their_journal(tmp_path: Path) -> None:
    models = ("squeezenet", "alexnet")

    class Stop(Exception):
        """Interrupts the command."""

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        simulate_resources(tmp_path / "runs.csv", runs=4, models=models, engine=local_engine(1), progress=stop)
    seen: list[int] = []
    made = simulate_resources(tmp_path / "runs.csv", runs=4, models=models, progress=lambda done, _: seen.append(done))
    assert seen == [3, 4]
    assert made.written + made.left_out == 4
    assert not (tmp_path / "runs.csv.journal").exists()
    found, problems = read_runs([tmp_path / "runs.csv"])
    assert len(found) == made.written
    assert not problems


def test_a_simulated_row_has_the_largest_batch_that_fits_or_a_share_of_it() -> None:
    row = {"model": "alexnet", "strategy": "dp=2,servers=1", "device": "v100-pcie-16gb", "devices_per_node": 2,
           "precision": "fp32"}  # fmt: skip
    whole = simulated_row({**row, "batch_share": 1.0})
    half = simulated_row({**row, "batch_share": 0.5})
    assert whole is not None
    assert half is not None
    assert whole["global_batch"] == 2 * half["global_batch"] == 512
    assert simulated_row({**row, "strategy": "dp=3", "batch_share": 1.0}) is None
    assert len(MODELS) == 6


def test_the_inspector_that_comes_with_traincast_knows_resnet() -> None:
    shipped = load_inspector(inspector_path("shipped"))
    request = request_for("resnet18", 512)
    uses, low, high = shipped.uses(request.graph, setting_of(request))
    simulated, _ = simulated_uses(request)
    assert uses["compute"].pattern == simulated["compute"].pattern == "busy"
    assert uses["compute"].burst_amount == pytest.approx(1.0, abs=0.1)
    assert uses["receive"].pattern == simulated["receive"].pattern == "bursts"
    assert told(low["memory"].burst_s) <= told(simulated["memory"].burst_s) <= told(high["memory"].burst_s)
    assert set(DRIPLE) <= set(shipped.settings)
    size = sum(file.stat().st_size for file in inspector_path("shipped").iterdir())
    assert size < 2e6
