"""Points: a process goes through what was measured, knows kin from strangers, and adds up both gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import Operator, TensorSpec, load_device
from traincast.estimate.bundle import SHIPPED, load_bundle
from traincast.estimate.learned import equivalent_of
from traincast.estimate.operators.cells import RAMP, Cell, filling
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import shapes_of
from traincast.estimate.operators.points import Covariance, Kin, MeasuredPoints, Places, covariance
from traincast.graph import DType, OpKind, Phase

V100 = load_device("v100-sxm2-16gb")


def kin(name: str) -> Kin:
    return Kin.of(load_device(name))


def test_kinship_falls_with_the_generations_between_two_devices() -> None:
    law = Covariance(architecture=0.9, generation=0.8, strangers=0.3)
    v100 = kin("v100-sxm2-16gb")
    assert law.kinship(v100, v100) == 1.0
    assert law.kinship(v100, kin("v100-pcie-32gb")) == 0.99
    assert law.kinship(kin("titan-xp"), kin("p100-pcie-16gb")) == 0.9
    assert law.kinship(v100, kin("t4")) == pytest.approx(0.9 * 0.8)
    assert law.kinship(v100, kin("m40")) == pytest.approx(0.9 * 0.8**2)
    assert law.kinship(v100, kin("mi25")) == 0.3
    assert law.kinship(kin("mi25"), kin("vega-fe")) == pytest.approx(0.9 if kin("mi25").num_sms != 64 else 0.99)


def places(sizes: list[float], names: list[int]) -> Places:
    zeros = np.zeros(len(sizes), dtype=np.int64)
    return Places(
        sizes=np.array(sizes, dtype=np.float32)[:, None], names=np.array(names), dtypes=zeros, settings=zeros,
        devices=zeros,
    )  # fmt: skip


def test_covariance_is_the_product_of_what_two_operators_share() -> None:
    law = Covariance(spread=2.0, bias=0.5, common=0.1, names=0.4)
    found = covariance(law, places([0.0], [0]), places([0.0, 1.0, 1.0], [0, 0, 1]), np.ones((1, 1)))
    near = 4.0 * np.exp(-1.0) + 0.25
    np.testing.assert_allclose(found[0], [4.25 + 0.01, near + 0.01, 0.4 * near + 0.01], rtol=1e-6)


def test_a_process_without_noise_goes_through_its_points_and_forgets_far_ones() -> None:
    law = Covariance(noise=1e-4, bias=0.0, common=0.0)
    measured, target = places([0.0, 1.0], [0, 0]), np.array([0.3, 0.7])
    own = covariance(law, measured, measured, np.ones((1, 1))) + law.noise**2 * np.eye(2)
    points = MeasuredPoints(
        law=law, kin=(Kin.of(V100),), vocabulary={"name": ["a"], "dtype": ["fp32"], "setting": ["x"]},
        places=measured, weights=np.asarray(np.linalg.solve(own, target - 0.5), dtype=np.float64), mean=0.5,
    )  # fmt: skip
    sizes = np.array([[0.0], [1.0], [60.0]], dtype=np.float32)
    said = points(sizes, ["a"] * 3, dtype="fp32", setting="x", device=V100)
    np.testing.assert_allclose(said, [0.3, 0.7, 0.5], atol=1e-5)
    again = MeasuredPoints.from_arrays(points.card(), points.vocabulary, points.arrays())
    np.testing.assert_array_equal(again(sizes, ["a"] * 3, dtype="fp32", setting="x", device=V100), said)


def convolution(batch: int = 16, *, products: int = 0) -> Operator:
    x, w, y = (TensorSpec(s, DType.FP32) for s in ((batch, 64, 56, 56), (64, 64, 3, 3), (batch, 64, 56, 56)))
    if not products:
        return Operator(name="convolution", kind=OpKind.CONV, phase=Phase.FORWARD, inputs=(x, w), outputs=(y,))
    return Operator(
        name="convolution_backward", kind=OpKind.CONV, phase=Phase.BACKWARD, inputs=(y, x, w), outputs=(x, w),
        attributes={"products": products},
    )  # fmt: skip


@pytest.fixture(scope="module")
def bare() -> Cell:
    return load_bundle(SHIPPED / "operators").cell("conv/bare/any/any")


def test_a_gradient_by_both_is_the_sum_of_its_two_kernels(bare: Cell) -> None:
    rates = Rates.of(V100, "fp32")
    shapes = shapes_of("conv", [convolution(products=2)])
    both = bare.estimate(shapes, rates, dtype="fp32", device=V100).seconds
    each = [
        bare.estimate(shapes.named({"conv2d.bwd": name}), rates, dtype="fp32", device=V100).seconds
        for name in ("conv2d.bwd_data", "conv2d.bwd_weight")
    ]
    np.testing.assert_allclose(both, each[0] + each[1], rtol=1e-12)
    assert bare.knows(shapes).all()


def test_the_shipped_kernels_are_as_fast_as_a_v100_runs_them(bare: Cell) -> None:
    """A 3 × 3 convolution of 16 images takes 179 µs there (DeepBench): faster than its multiply-adds at the peak."""
    found = bare.estimate(shapes_of("conv", [convolution()]), Rates.of(V100, "fp32"), dtype="fp32", device=V100)
    assert found.seconds[0] == pytest.approx(179e-6, rel=0.15)
    assert found.low[0] < 179e-6 < found.high[0]


def test_groups_and_other_than_images_are_left_to_physics(bare: Cell) -> None:
    grouped = replace(
        convolution(), inputs=(TensorSpec((16, 64, 56, 56), DType.FP32), TensorSpec((64, 2, 3, 3), DType.FP32))
    )
    assert bare.knows(shapes_of("conv", [convolution(), grouped])).tolist() == [True, False]


def test_a_device_that_an_operator_does_not_fill_loses_part_of_a_wave() -> None:
    small, large = (filling(shapes_of("conv", [convolution(b)]), np.asarray(80.0))[0] for b in (1, 16))
    assert large == pytest.approx(np.log1p(RAMP / (16 * 56 * 56 * 64 / (128 * 64 * 80))))
    assert small > large > 0


def test_batch_norm_moves_the_bytes_of_three_passes() -> None:
    x, c = TensorSpec((8, 64, 16, 16), DType.FP32), TensorSpec((64,), DType.FP32)
    norm = Operator(
        name="native_batch_norm", kind=OpKind.BATCH_NORM, phase=Phase.FORWARD, inputs=(x, c, c), outputs=(x,)
    )
    found = equivalent_of(norm)
    assert found is not None
    assert found.nbytes == pytest.approx(1.5 * norm.nbytes, rel=1e-4)
    assert found.name == "add.fwd"
    assert equivalent_of(replace(norm, name="native_layer_norm")) is None
