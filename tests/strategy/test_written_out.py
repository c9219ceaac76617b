"""Layers written out in plain kernels: more kernels, the same products, norms that keep fp32 inputs."""

from __future__ import annotations

import pytest

from traincast import OperatorGraph, capture
from traincast.graph import DType, Phase
from traincast.strategy import load_precision
from traincast.strategy.program.written_out import NORM_FORWARD, ROTARY_FORWARD, write_out


@pytest.fixture(scope="module")
def graph() -> OperatorGraph:
    return capture("llama:layers=4,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=100", seq=16)


def kernels(graph: OperatorGraph, phase: Phase = Phase.FORWARD) -> int:
    return sum(count for op, count in graph if op.phase is phase)


def test_norms_and_rotary_positions_become_single_kernels(graph: OperatorGraph) -> None:
    written = write_out(graph)
    norms, rotary = 2 * 4 + 1, 2 * 4
    more = norms * len(NORM_FORWARD) + rotary * len(ROTARY_FORWARD) + 1  # and the logits' cast to fp32
    assert kernels(written) == kernels(graph) + more


def test_a_fused_loss_needs_no_cast_of_the_logits(graph: OperatorGraph) -> None:
    assert kernels(write_out(graph, fused_loss=True)) == kernels(write_out(graph)) - 1


def test_keys_and_values_are_copied_for_all_heads(graph: OperatorGraph) -> None:
    assert kernels(write_out(graph, repeats_keys=True)) == kernels(write_out(graph)) + 2 * 4


def test_a_trained_norm_keeps_its_input_in_fp32_and_the_normalised_values(graph: OperatorGraph) -> None:
    norm = next(op for op, _ in write_out(graph) if op.name == "rms_norm")
    assert [(t.dtype, t.numel) for t in norm.saved[:2]] == [(DType.FP32, 16 * 64), (DType.BF16, 16 * 64)]


def test_kernels_that_mix_dtypes_keep_them_in_16_bits_and_not_in_32(graph: OperatorGraph) -> None:
    cast = next(op for op, _ in write_out(graph) if op.name == "to_fp32")
    half, full = (load_precision(name).apply(cast) for name in ("bf16", "fp32"))
    assert (half.bytes_read, half.bytes_written) == (2 * 16 * 64, 4 * 16 * 64)
    assert (full.bytes_read, full.bytes_written) == (4 * 16 * 64, 4 * 16 * 64)


def test_parameters_and_products_stay_the_same(graph: OperatorGraph) -> None:
    written = write_out(graph, repeats_keys=True)
    assert written.num_parameters == graph.num_parameters

    def products(of: OperatorGraph) -> float:
        return sum(op.flops * count for op, count in of if op.kind.value == "gemm")

    assert products(written) == products(graph)
