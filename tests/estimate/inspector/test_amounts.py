"""Amounts of operators: what does not depend on the batch, and what each sample adds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import graph_of
from traincast.estimate.inspector.amounts import amounts_of
from traincast.graph import Phase


@pytest.mark.parametrize("name", ["resnet50", "mobilenet-v2", "gpt2", "deepseek-v2-lite", "dlrm-small", "tft", "nmt"])
def test_two_samples_take_what_the_operators_take_with_a_batch_of_two(name: str) -> None:
    graph = graph_of(name)
    found = amounts_of(graph)
    both = [op if op.phase is Phase.OPTIMIZER else op.with_batch(2) for op in graph.operators]
    for column, expected in (
        (found.flops, [op.flops for op in both]),
        (found.nbytes, [op.nbytes for op in both]),
        (found.output_bytes, [sum(tensor.nbytes for tensor in op.outputs) for op in both]),
    ):
        np.testing.assert_allclose(column[0] + 2 * column[1], np.array(expected, dtype=np.float64), rtol=1e-12)
