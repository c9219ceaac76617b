"""The index of calibrated clusters: it says what their files say."""

from __future__ import annotations

from pathlib import Path

from traincast import load_cluster
from traincast.cluster import find_entry
from traincast.cluster.calibrated import (
    INDEX,
    CalibratedEntry,
    calibrated_clusters,
    calibrated_index,
    index_toml,
    write_index,
)


def test_the_index_is_current() -> None:
    written = INDEX.read_text(encoding="utf-8")
    assert written == index_toml(calibrated_clusters()), "run python -m benchmarks.clusters"


def test_the_index_is_read_as_it_was_written() -> None:
    entries = calibrated_index()
    assert len(entries) > 10
    assert entries == tuple(CalibratedEntry.of(load_cluster(entry.name)) for entry in entries)


def test_a_cluster_is_found_by_device_and_runtime() -> None:
    found = find_entry(load_cluster("dgx-a100"), "pytorch-1", models="sequences")
    assert found is not None
    assert found.name == "a100-sxm4-80gb-pytorch-1-sequences-deep-learning-examples"
    assert (found.device, "pytorch-1" in found.runtimes) == ("a100-sxm4-80gb", True)
    assert find_entry(load_cluster("dgx-a100"), "nanotron") is None


def test_a_cluster_serves_the_kinds_of_models_that_it_was_calibrated_with() -> None:
    names = [find_entry(load_cluster("dgx-a100"), "pytorch-1", models=kind) for kind in ("images", "sequences")]
    assert [entry.models for entry in names if entry] == [("images",), ("sequences",)]
    any_model = find_entry(load_cluster("a100-sxm4-80gb-fsdp-llm-foundry"), "fsdp", models="sequences")
    assert any_model is not None and any_model.models == ()


def test_an_index_is_written_where_asked(tmp_path: Path) -> None:
    write_index(calibrated_clusters()[:1], tmp_path / "index.toml")
    (_, line) = (tmp_path / "index.toml").read_text(encoding="utf-8").splitlines()
    assert line.startswith(f'"{calibrated_clusters()[0].name}" = {{ device = ')
