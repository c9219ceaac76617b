"""Calculon, asked for one step; ``benchmarks/peers/__init__.py`` says what is assumed."""

from __future__ import annotations

import copy
import importlib
import json
import logging
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.case import (
    Case,
    MissingPeerError,
    NotExpressibleError,
    case_of,
    domain_devices,
    found,
    node_bandwidth,
)
from traincast.strategy import Request

_OWN: Final = {"a100-sxm4-80gb": "a100_80g", "h100-sxm5-80gb": "h100_80g_nvl8"}
"""Devices that Calculon has a system file for."""
_EARLIER: Final = ("kepler", "maxwell", "pascal", "volta", "turing", "ampere")
_TYPES: Final = {"bf16": "float16", "fp16": "float16", "fp8": "float8", "fp32": "float32", "tf32": "float32"}
_RECOMPUTES: Final = {"none": "none", "selective": "attn_only", "full": "full"}
_UNLIMITED_GIB: Final = 1e9


class Calculon:
    """Calculon as installed or checked out."""

    name = "Calculon"
    version = ""

    def __init__(self, folder: Path | None = None) -> None:
        package, place = found(self.name, "--calculon", "calculon.llm", folder)
        self._llm: Any = package.Llm
        self._system: Any = importlib.import_module("calculon.system").System
        self._log = logging.getLogger("calculon")
        self.folder = place
        try:
            names = set(_OWN.values())
            self._files = {name: json.loads((place / "systems" / f"{name}.json").read_text()) for name in names}
        except OSError as error:
            raise MissingPeerError(f"{self.name} is skipped: {error}; give --calculon DIR") from None

    def seconds(self, request: Request) -> float:
        """Return the seconds of one step."""
        case = case_of(request)
        if request.strategy.zero == 3:
            raise NotExpressibleError("sharded weights")
        model = self._llm(self._llm.Application(_application(case)), self._log)
        try:
            system = self._system(self._system_file(case))
            model.compile(system, self._llm.Execution.from_json(_execution(case)))
            model.run(system)
        except (AssertionError, self._llm.Error) as error:
            raise NotExpressibleError(str(error).partition("\n")[0] or "refused by its own checks") from None
        return float(model.get_total_time())

    def _system_file(self, case: Case) -> dict[str, Any]:
        """Return the system file of a case: Calculon's own, or one with the catalog's rates."""
        cluster, device, kind = case.request.cluster, case.request.cluster.device, _datatype(case)
        near = "a100_80g" if device.architecture in _EARLIER else "h100_80g_nvl8"
        made: dict[str, Any] = copy.deepcopy(self._files[_OWN.get(device.name, near)])
        if device.name not in _OWN or kind not in made["matrix"]:
            matrix, vector = made["matrix"]["float16"], made["vector"]["float16"]
            made["matrix"] = {kind: {**matrix, "tflops": device.peak(case.compute) / 1e12}}
            made["vector"] = {kind: {**vector, "tflops": 2 * device.peak("fp32") / 1e12}}
            made["mem1"]["GBps"] = device.memory_bandwidth / 1e9
        made["mem1"]["GiB"] = _UNLIMITED_GIB
        near_link, far_link = made["networks"]
        near_link |= {"bandwidth": cluster.intra_node.bandwidth / 1e9, "size": domain_devices(cluster)}
        far_link |= {"bandwidth": node_bandwidth(cluster) / cluster.devices_per_node / 1e9, "size": 10**7}
        for link in made["networks"]:
            link["must_be_filled"] = False
        return made


def _application(case: Case) -> dict[str, int]:
    """Return the model; the width of its feed-forward part makes the weights of a block those of the case."""
    attention = 4 * case.hidden * case.heads * case.head_dim
    tp = case.request.strategy.tp
    return {
        "hidden": case.hidden,
        "feedforward": max(1, round((case.block_weights - attention) / (2 * case.hidden) / tp)) * tp,
        "seq_size": case.seq,
        "attn_heads": case.heads,
        "attn_size": case.head_dim,
        "num_blocks": case.layers,
    }


def _execution(case: Case) -> dict[str, Any]:
    strategy, exchange = case.request.strategy, case.request.runtime.exchange
    near = domain_devices(case.request.cluster)
    if strategy.recompute not in _RECOMPUTES:
        raise NotExpressibleError(f"recompute={strategy.recompute}")
    recompute = _RECOMPUTES[strategy.recompute]
    return {
        "num_procs": strategy.num_ranks,
        "tensor_par": strategy.tp,
        "pipeline_par": strategy.pp,
        "data_par": strategy.dp,
        "tensor_par_net": int(strategy.tp > near),
        "data_par_net": int(strategy.tp * strategy.dp > near),
        "pipeline_par_net": int(strategy.num_ranks > near),
        "batch_size": case.request.global_batch,
        "microbatch_size": case.micro_batch,
        "datatype": _datatype(case),
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": strategy.virtual_stages,
        "optimizer_sharding": strategy.zero > 0 and strategy.dp > 1,
        "tensor_par_comm_type": "rs_ag" if strategy.sequence_parallel else "ar",
        "tensor_par_overlap": "ring" if exchange.overlap_tensor and strategy.tp > 1 else "none",
        "seq_par_ag_redo": strategy.sequence_parallel and recompute != "full",
        "data_par_overlap": exchange.overlap_gradients and strategy.dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def _datatype(case: Case) -> str:
    if case.compute not in _TYPES:
        raise NotExpressibleError(f"products in {case.compute}")
    return _TYPES[case.compute]
