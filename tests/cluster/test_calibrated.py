"""Calibrated clusters: what is written is read again, nonsense is refused, and the nearest one speaks for a run."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from traincast import Calibration, Cluster, FileFormatError, load_cluster
from traincast.cluster import FACTORS, FEATURES, Correction, SeenModel, Stall, find_calibration, write_calibrated
from traincast.cluster.calibrated import CalibratedEntry, calibrated_clusters
from traincast.cluster.calibration import NUMBERS

STALL = Stall(seconds=0.0123456, base=-3.14159, per_node=0.271828, pipeline=1.41421, per_tensor_node=-0.5)
REST = (1.0,) * (len(FEATURES) - 3)
CORRECTION = Correction(
    points=((0.0, 1.5, -2.25, *REST), (3.0, 0.123456, 7.0, *REST), (1e-7, 8.0, 999.0, *REST)),
    weights=(0.0314159, -0.271828, 1e-6),
    scales=(1.0, 2.5, 0.333333, *REST),
)
FULL = Calibration(
    **{name: 1.0 + 0.0123456 * (i + 1) for i, name in enumerate(FACTORS)},  # type: ignore[arg-type]
    interference=1.98765,
    intra_latency_s=1.23456e-6,
    inter_latency_s=7.65432e-5,
    jitter=0.0123456,
    step_s=0.00987654,
    memory_share=1.04321,
    low=0.912345,
    high=1.123456,
    unknown=0.456789,
    runtimes=("megatron", "nanotron"),
    models=("images", "tables"),
    nodes=(2, 64),
    runs=137,
    stall=STALL,
    correction=CORRECTION,
)


def written(folder: Path, calibration: Calibration, *, name: str = "", source: str = "") -> Cluster:
    """The cluster that is read from the file that ``calibration`` was written to."""
    path = folder / "lab.toml"
    write_calibrated(path, extends="dgx-h100", calibration=calibration, name=name, source=source, num_nodes=4)
    return load_cluster(str(path))


def read_again(folder: Path, calibration: Calibration) -> Calibration:
    again = written(folder, calibration).calibration
    assert again is not None
    return again


def test_every_number_is_read_as_it_was_written_to_five_digits(tmp_path: Path) -> None:
    again = read_again(tmp_path, FULL)
    assert all(getattr(again, name) != getattr(Calibration(), name) for name in NUMBERS)
    for name in NUMBERS:
        assert getattr(again, name) == pytest.approx(getattr(FULL, name), rel=5e-5), name
    assert (again.runtimes, again.nodes, again.runs) == (FULL.runtimes, FULL.nodes, FULL.runs)


def test_factors_of_models_are_read_as_they_were_written_and_serve_these_models_only(tmp_path: Path) -> None:
    seen = (
        SeenModel(model="resnet50", precision="amp", factor=1.23456, runs=3),
        SeenModel(model='t5:text="a"', precision="bf16", factor=0.9, runs=1),
    )
    again = read_again(tmp_path, replace(FULL, seen=seen))
    assert [(s.model, s.precision, s.runs) for s in again.seen] == [("resnet50", "amp", 3), ('t5:text="a"', "bf16", 1)]
    assert again.factor_of("resnet50", "amp") == pytest.approx(1.23456, rel=5e-5)
    assert again.factor_of("resnet50", "fp32") == again.factor_of("vgg16", "amp") == 1.0


def test_an_unknown_key_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    entry = '{ model = "resnet50", precision = "amp", factor = 1.1, runs = 1, speed = 2 }'
    path.write_text(f'extends = "dgx-h100"\n\n[calibration]\nseen = [{entry}]\n', encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"\[calibration\] seen 1 has unknown key 'speed'"):
        load_cluster(str(path))


def test_the_slow_mode_and_the_correction_are_read_as_they_were_written(tmp_path: Path) -> None:
    again = read_again(tmp_path, FULL)
    assert again.stall is not None
    assert again.correction is not None
    for field in fields(Stall):
        assert getattr(again.stall, field.name) == pytest.approx(getattr(STALL, field.name), rel=5e-5)
    assert again.correction.weights == pytest.approx(CORRECTION.weights, rel=5e-5)
    assert again.correction.scales == pytest.approx(CORRECTION.scales, rel=5e-5)
    assert len(again.correction.points) == len(CORRECTION.points)
    for point, expected in zip(again.correction.points, CORRECTION.points, strict=True):
        assert point == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize("calibration", [Calibration(), Calibration(gemm=2.0, nodes=(3, 3), runtimes=("fsdp",))])
def test_numbers_of_few_digits_come_back_exactly(calibration: Calibration, tmp_path: Path) -> None:
    assert read_again(tmp_path, calibration) == calibration


def test_a_second_round_changes_nothing(tmp_path: Path) -> None:
    once = read_again(tmp_path, FULL)
    assert read_again(tmp_path, once) == once


def test_all_but_the_calibration_comes_from_what_a_file_extends(tmp_path: Path) -> None:
    cluster = written(tmp_path, FULL, name='a "quoted" \\ name', source="três runs,\nin two lines")
    plain = load_cluster("dgx-h100:4")
    assert (cluster.name, cluster.source) == ('a "quoted" \\ name', "três runs, in two lines")
    assert replace(cluster, name=plain.name, source=plain.source, calibration=None) == plain
    assert [path.name for path in tmp_path.iterdir()] == ["lab.toml"]  # nothing is left beside it


def test_a_file_that_extends_a_calibrated_one_is_calibrated_until_it_says_otherwise(tmp_path: Path) -> None:
    calibration = written(tmp_path, FULL).calibration
    above = tmp_path / "above.toml"
    above.write_text('extends = "lab.toml"\n[cluster]\nnum_nodes = 2\n', encoding="utf-8")
    assert load_cluster(str(above)).calibration == calibration
    assert load_cluster(f"{above}:8").calibration == calibration
    above.write_text('extends = "lab.toml"\n[calibration]\ngemm = 3.0\n', encoding="utf-8")
    assert load_cluster(str(above)).calibration == Calibration(gemm=3.0)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("gemm = 0.0", "gemm"),
        ("gemm = nan", "gemm"),
        ("gemm = -1.0", "gemm"),
        ("gemm = 'fast'", "gemm"),
        ("gemms = 1.0", "gemms"),
        ("jitter = -0.1", "jitter"),
        ("step_s = inf", "step_s"),
        ("intra_latency_s = -1e-6", "intra_latency_s"),
        ("runs = 2.5", "runs"),
        ("runtimes = 'megatron'", "runtimes"),
        ("low = 1.3\nhigh = 1.2", "low = 1.3 is above high = 1.2"),
        ("nodes = [4]", "expected a list of 2 whole numbers from 1 to 1000000"),
        ("nodes = [8, 2]", "the fewest nodes, then the most"),
        ("nodes = [0, 2]", "nodes"),
        ("[calibration.stall]\nseconds = 1.0", "stall.base is missing"),
        ("[calibration.stall]\nbase = 1.0", "stall.seconds is missing"),
        ("[calibration.stall]\nseconds = 1.0\nbase = 'low'", "base"),
        ("[calibration.stall]\nseconds = 1.0\nbase = 1.0\nper_rank = 1.0", "per_rank"),
        ("[calibration.correction]\npoints = [[1.0]]\nweights = []\nscales = [1.0]", "1 points, 0 weights"),
        ("[calibration.correction]\npoints = [[1.0, 2.0]]\nweights = [1.0]\nscales = [1.0]", "numbers each"),
        ("[calibration.correction]\npoints = [1.0]\nweights = [1.0]\nscales = [1.0]", r"points\[0\]"),
        ("[calibration.correction]\npoints = 1.0", "points"),
        ("[calibration.correction]\nscales = [0.0]", "scales"),
    ],
)
def test_a_bad_calibration_is_refused_in_one_line(table: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'extends = "dgx-h100"\n[calibration]\n{table}\n', encoding="utf-8")
    with pytest.raises(FileFormatError, match=said) as caught:
        load_cluster(str(path))
    assert "\n" not in str(caught.value)
    assert "bad.toml" in str(caught.value)


def known(name: str, calibration: Calibration) -> Cluster:
    return replace(load_cluster(name), calibration=calibration)


@pytest.fixture
def small_and_large(monkeypatch: pytest.MonkeyPatch) -> tuple[Calibration, Calibration]:
    """Calibrations of few and of many nodes of H100, beside one of A100."""
    small = Calibration(gemm=1.1, runtimes=("megatron",), nodes=(1, 4), runs=9)
    large = Calibration(gemm=1.2, runtimes=("megatron", "nanotron"), nodes=(32, 128), runs=9)
    other = Calibration(gemm=1.3, runtimes=("megatron", "fsdp"), nodes=(1, 1024), runs=9)
    clusters = {n: replace(known(n, c), name=n) for n, c in (("dgx-h100:4", small), ("dgx-h100:64", large))}
    clusters["dgx-a100"] = known("dgx-a100", other)
    entries = [CalibratedEntry.of(cluster) for cluster in clusters.values()]
    monkeypatch.setattr("traincast.cluster.calibrated.calibrated_index", lambda: entries)
    monkeypatch.setattr("traincast.cluster.calibrated.load_cluster", clusters.__getitem__)
    return small, large


@pytest.mark.parametrize(("nodes", "number"), [(1, 0), (4, 0), (8, 0), (16, 1), (32, 1), (128, 1), (1024, 1)])
def test_the_calibration_with_the_nearest_number_of_nodes_speaks(
    nodes: int, number: int, small_and_large: tuple[Calibration, Calibration]
) -> None:
    # From 4 to 32 is a factor of 8: half of it is passed at 4·√8 = 11 nodes.
    assert (number == 1) == (nodes > 4 * math.sqrt(8))
    assert find_calibration(load_cluster(f"dgx-h100:{nodes}"), "megatron") == small_and_large[number]


@pytest.mark.usefixtures("small_and_large")
def test_only_the_same_device_and_runtime_speak() -> None:
    found = find_calibration(load_cluster("dgx-h100:1"), "nanotron")
    assert found is not None
    assert found.nodes == (32, 128)  # far away, but the only one of its runtime
    assert find_calibration(load_cluster("dgx-h100:1"), "fsdp") is None
    assert find_calibration(load_cluster("dgx-h200:4"), "megatron") is None


def test_calibrated_clusters_of_the_catalog_say_with_what() -> None:
    for cluster in calibrated_clusters():
        calibration = cluster.calibration
        assert calibration is not None
        assert calibration.runtimes, cluster.name
        assert calibration.runs > 0, cluster.name
        assert calibration.low <= 1.0 <= calibration.high, cluster.name
        for runtime in calibration.runtimes:
            for kind in calibration.models or ("",):
                assert find_calibration(cluster, runtime, models=kind) is not None


@pytest.mark.parametrize(
    ("where", "odds"),
    [
        ({"nodes": 1, "tensor_nodes": 1, "stages": 1}, -2.0),
        ({"nodes": 5, "tensor_nodes": 1, "stages": 1}, -2.0 + 4 * 0.5),
        ({"nodes": 5, "tensor_nodes": 2, "stages": 1}, -2.0 + 4 * 0.5),
        ({"nodes": 5, "tensor_nodes": 2, "stages": 4}, -2.0 + 4 * 0.5 + 3.0 + 0.25),
    ],
)
def test_the_odds_of_a_slow_mode_are_logistic(where: dict[str, int], odds: float) -> None:
    stall = Stall(seconds=1.0, base=-2.0, per_node=0.5, pipeline=3.0, per_tensor_node=0.25)
    assert stall.probability(**where) == pytest.approx(1 / (1 + math.exp(-odds)), rel=1e-12)


def test_odds_out_of_range_are_certainties() -> None:
    far = Stall(seconds=1.0, base=1e6), Stall(seconds=1.0, base=-1e6)
    assert [s.probability(nodes=1, tensor_nodes=1, stages=1) for s in far] == pytest.approx([1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize(("nodes", "expected"), [(1, 2.5), (2, 2.7), (16, 3.3)])
def test_a_step_takes_its_jitter_longer_for_every_doubling_of_nodes(nodes: int, expected: float) -> None:
    assert Calibration(jitter=0.1, step_s=0.5).step(2.0, nodes=nodes) == pytest.approx(expected, rel=1e-12)
