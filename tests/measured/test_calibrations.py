"""A run is forecast with the calibration of a cluster whose network is like its own."""

from __future__ import annotations

import pytest

from tests.measured.asking import steps_request
from traincast.measured.calibrations import calibrated_by, with_calibration
from traincast.tables import Row

ROW: Row = {
    "framework": "Megatron-DeepSpeed",
    "model": "gpt",
    "n_layers": 8,
    "hidden": 1024,
    "heads": 16,
    "vocab": 1000,
    "seq": 128,
    "gpu": "A100-SXM4-80GB",
    "n_gpus": 64,
    "gpus_per_node": 8,
    "dp": 64,
    "micro_batch": 1,
    "global_batch": 64,
    "step_time_s": 1.0,
}


@pytest.mark.parametrize(("network", "nodes", "name"), [
    ("NVSwitch / 8x HDR200 IB", 8, "a100-sxm4-80gb-megatron-deepspeed-vtrain-multi"),
    ("4 Omni-Path links per node", 8, ""),
    ("4 Omni-Path links per node", 1, "a100-sxm4-80gb-megatron-deepspeed-vtrain-single"),
])  # fmt: skip
def test_a_cluster_with_another_network_is_not_alike(network: str, nodes: int, name: str) -> None:
    devices = 8 * nodes
    row = {**ROW, "interconnect": network, "n_gpus": devices, "dp": devices, "global_batch": devices}
    request = steps_request(row)
    assert calibrated_by(request) == name
    assert (with_calibration(request).cluster.calibration is not None) == bool(name)
