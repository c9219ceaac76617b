"""Laws of convolutions: depthwise ones with wide windows, and convolutions over time."""

from __future__ import annotations

import pytest

from traincast import AnalyticalCostModel, Cluster, Operator, TensorSpec, load_cluster
from traincast.estimate.operators.convolutions import FOURIER_GAIN, WINDOW_FLOP_SHARE, convolution_law, depthwise_s
from traincast.graph import DType, OpKind, Phase

V100 = load_cluster("dgx-1-v100")
A100 = load_cluster("dgx-a100")
GAUDI = load_cluster("hls-gaudi2")
FRAMES = 840


def depthwise(window: int, dtype: DType = DType.FP32, *, rank: int = 1) -> Operator:
    x = TensorSpec((32, 512, *((FRAMES,) if rank == 1 else (64, 64))), dtype)
    weight = TensorSpec((512, 1, *(window,) * rank), dtype)
    return Operator(
        name="convolution",
        kind=OpKind.DEPTHWISE_CONV,
        phase=Phase.FORWARD,
        inputs=(x, weight),
        outputs=(x,),
        attributes={"groups": 512},
    )


def over_time(window: int, dtype: DType = DType.FP32, *, stride: int = 1) -> Operator:
    x = TensorSpec((64, 768, FRAMES), dtype)
    return Operator(
        name="convolution",
        kind=OpKind.CONV,
        phase=Phase.FORWARD,
        inputs=(x, TensorSpec((768, 768, window), dtype)),
        outputs=(x,),
        attributes={"groups": 1, "stride": stride},
    )


def seconds(op: Operator, cluster: Cluster) -> float:
    return float(AnalyticalCostModel().estimate([op], cluster).seconds[0])


def test_a_wide_depthwise_window_takes_its_products_at_a_small_share_of_the_peak() -> None:
    op = depthwise(75)
    expected = op.flops / (WINDOW_FLOP_SHARE * V100.device.peak("fp32"))
    assert depthwise_s(op, V100.device, graphics=True) == pytest.approx(expected, rel=1e-12)
    assert seconds(op, V100) == pytest.approx(expected, rel=0.02)
    assert seconds(depthwise(75), V100) / seconds(depthwise(33), V100) == pytest.approx(75 / 33, rel=0.02)


def test_the_dtype_does_not_change_a_wide_depthwise_window_and_does_change_a_small_one() -> None:
    assert seconds(depthwise(75, DType.FP16), A100) == pytest.approx(seconds(depthwise(75), A100), rel=0.02)
    ratio = seconds(depthwise(3, DType.FP16, rank=2), A100) / seconds(depthwise(3, rank=2), A100)
    assert ratio == pytest.approx(0.5, rel=0.02)


def test_windows_that_kernels_are_written_out_for_move_bytes() -> None:
    three, five = (depthwise_s(depthwise(w, rank=2), V100.device, graphics=True) for w in (3, 5))
    assert five == pytest.approx(three, rel=1e-3)
    seven = depthwise_s(depthwise(7, rank=2), V100.device, graphics=True)
    assert seven > 2 * five


def test_fourier_transforms_speed_up_convolutions_over_time_in_fp32_only() -> None:
    assert seconds(over_time(11, stride=2), V100) / seconds(over_time(11), V100) == pytest.approx(
        FOURIER_GAIN, rel=0.02
    )
    assert convolution_law(over_time(87), graphics=True).gain == 1.0
    assert convolution_law(over_time(3), graphics=True).gain == 1.0
    assert convolution_law(over_time(11, DType.FP16), graphics=True).gain == 1.0
    assert convolution_law(over_time(11), graphics=False).gain == 1.0


def test_sequences_in_16_bits_are_converted_to_another_layout() -> None:
    op = over_time(11, DType.FP16)
    assert convolution_law(op, graphics=True).converted_bytes == op.nbytes
    assert convolution_law(op, graphics=False).converted_bytes == 0.0
    assert convolution_law(over_time(1, DType.FP16), graphics=True).converted_bytes == 0.0
    assert convolution_law(over_time(11), graphics=True).converted_bytes == 0.0


def image(dtype: DType, *, dims: int = 2, **attributes: str) -> Operator:
    x = TensorSpec((64, 128, *(28,) * dims), dtype)
    return Operator(
        name="convolution",
        kind=OpKind.CONV,
        phase=Phase.FORWARD,
        inputs=(x, TensorSpec((128, 128, *(3,) * dims), dtype)),
        outputs=(x,),
        attributes={"groups": 1, "stride": 1, **attributes},
    )


def test_images_with_channels_first_are_read_and_written_once_more_in_16_bits() -> None:
    op = image(DType.FP16, layout="channels_first")
    assert convolution_law(op, graphics=True).converted_bytes == 2.0 * op.nbytes
    assert convolution_law(image(DType.FP16), graphics=True).converted_bytes == 0.0
    assert convolution_law(image(DType.FP32, layout="channels_first"), graphics=True).converted_bytes == 0.0
    assert convolution_law(image(DType.FP16, dims=3, layout="channels_first"), graphics=True).converted_bytes == 0.0
    more = seconds(op, A100) - seconds(image(DType.FP16), A100)
    assert more > 2.0 * op.nbytes / A100.device.memory_bandwidth


def test_gradients_lose_less_where_matrix_units_are_easy_to_feed() -> None:
    x, w = TensorSpec((64, 128, 28, 28), DType.FP16), TensorSpec((128, 128, 3, 3), DType.FP16)
    gradient = Operator(
        name="convolution_backward",
        kind=OpKind.CONV,
        phase=Phase.BACKWARD,
        inputs=(x, x, w),
        outputs=(x, w),
        attributes={"groups": 1, "stride": 1},
    )
    whole = [product[0] for product in convolution_law(gradient, graphics=True).products]
    half = [product[0] for product in convolution_law(gradient, graphics=True, loss_share=0.5).products]
    assert half == pytest.approx([0.5 + share / 2 for share in whole])


def test_what_is_not_a_gpu_has_no_kernels_of_its_own_for_wide_windows() -> None:
    op = depthwise(75, DType.BF16)
    assert seconds(op, GAUDI) < 0.2 * op.flops / (WINDOW_FLOP_SHARE * GAUDI.device.peak("fp32"))
