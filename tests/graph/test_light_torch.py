"""Tracing without PyTorch's compiler leaves no trace of having done so."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
from traincast import capture
graph = capture("gpt:layers=2,hidden=64,heads=4,vocab=100,seq=32")
assert graph.num_parameters == 2 * (12 * 64 * 64 + 13 * 64) + (100 + 32) * 64 + 2 * 64, graph.num_parameters
assert not [m for m in sys.modules if m.startswith("torch._dynamo")]
import torch
import torch._dynamo
compiled = torch.compile(lambda x: x + 1, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
again = capture("gpt:layers=2,hidden=64,heads=4,vocab=100,seq=32")
assert again == graph
"""


def test_the_compiler_works_after_a_trace_without_it() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
