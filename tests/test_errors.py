"""What an unknown name is told, and an argument that cannot be meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import GPT
from traincast import (
    JobSettings,
    RequestError,
    UnknownNameError,
    calibrate,
    load_cluster,
    load_device,
    load_runtime,
    predict,
    search,
    validate,
)
from traincast.cluster import cluster_names, device_names, node_names
from traincast.graph import zoo

CLUSTERS = [*cluster_names(), *node_names()]


@pytest.mark.parametrize(
    ("name", "choices", "meant"),
    [
        ("h1000", device_names(), "h100-nvl-94gb, h100-pcie-80gb, h100-sxm5-80gb"),
        ("H100", device_names(), "h100-nvl-94gb, h100-pcie-80gb, h100-sxm5-80gb"),
        ("4090", device_names(), "rtx-4090"),
        ("dgx-h10", CLUSTERS, "dgx-h100"),
        ("resnet51", zoo.names(), "resnet50"),
        ("lama3-8b", zoo.names(), "llama3-8b"),
        ("gtp", list(zoo.FAMILIES), "gpt"),
    ],
)
def test_a_slip_of_the_pen_is_told_what_was_meant(name: str, choices: list[str], meant: str) -> None:
    assert f"unknown thing {name!r}: did you mean {meant}" in str(UnknownNameError("thing", name, choices))


@pytest.mark.parametrize("name", ["fpga", "npu", "warp", "中文", ""])
def test_a_name_like_nothing_known_is_told_what_is_known(name: str) -> None:
    said = str(UnknownNameError("device", name, device_names(), hint="look"))
    assert said.startswith(f"unknown device {name!r}: known are a10, a30, a40, cpu, ")
    assert said.endswith(", …; look")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cluster": None}, "cluster is None: expected a name such as dgx-h100:4, or a Cluster"),
        ({"cluster": 5}, "cluster is 5: expected a name"),
        ({"global_batch": True}, "global batch is True: expected a whole number from 1"),
        ({"global_batch": 8.0}, "global batch is 8.0: expected a whole number from 1"),
        ({"strategy": 3}, "strategy is 3: expected a text such as dp=8,tp=4, or a Strategy"),
        ({"seq": "5"}, "seq is '5': expected a whole number of tokens"),
        ({"precision": 3}, "precision is 3: expected a name such as bf16"),
        ({"runtime": 3}, "runtime is 3: expected a name such as megatron"),
        ({"tokens": "1e3"}, "tokens is '1e3': expected a number above zero"),
        ({"tokens": float("nan")}, "tokens is nan: expected a number above zero"),
        ({"steps": 0}, "steps is 0: expected a number above zero"),
        ({"optimizer": 3}, "optimizer is 3: expected True, False or a name"),
        ({"lora": 3}, "lora is 3: expected a text such as rank=16"),
        ({"lora": "rank=8,alpha=nan"}, "lora alpha is 'nan': expected a number"),
        ({"lora": "rank=8,dropout=inf"}, "lora dropout is 'inf': expected a number"),
        ({"cost_model": "x"}, "cost_model is 'x': expected a CostModel"),
        ({"conditions": "busy"}, "conditions is 'busy': expected Conditions"),
        ({"job": 1}, "job is 1: expected JobSettings"),
        ({"shard_rules": "x"}, "shard_rules is 'x': expected pairs of a pattern and column, row or replicate"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_in_one_line(arguments: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"cluster": "dgx-h100:1x1", "global_batch": 8, **arguments}
    with pytest.raises(RequestError) as refused:
        predict(GPT, **asked)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: search(GPT, cluster=None, global_batch=8), "cluster is None"),  # type: ignore[call-overload]
        (lambda: calibrate(None, cluster="dgx-h100"), "table is None"),  # type: ignore[call-overload]
        (lambda: validate(None), "table is None"),  # type: ignore[call-overload]
        (lambda: load_cluster(None), "cluster is None"),  # type: ignore[arg-type]
        (lambda: load_device(None), "device is None"),  # type: ignore[arg-type]
        (lambda: load_runtime(None), "runtime is None"),  # type: ignore[arg-type]
        (lambda: JobSettings(checkpoint_every_s=0), "checkpoint_every_s=0: expected a number from 1"),
        (lambda: JobSettings(startup_s=float("nan")), "startup_s=nan: expected a number from 0"),
    ],
)
def test_other_doors_refuse_it_as_well(call: Callable[[], object], said: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(said)}"):
        call()
