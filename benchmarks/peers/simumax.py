"""SimuMax, asked for one step; ``benchmarks/peers/__init__.py`` says what is assumed."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import warnings
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

_B200: Final = "b200_bf16_ceperm"
_A100: Final = "a100_pcie"
_LATEST: Final = ("blackwell", "blackwell-ultra")
"""Architectures that get the efficiencies of the B200; all others get those of the A100."""
_RECOMPUTES: Final = {"none": None, "selective": "sdp_only", "full": "full_block"}


class SimuMax:
    """SimuMax as installed or checked out."""

    name = "SimuMax"
    version = ""

    def __init__(self, folder: Path | None = None) -> None:
        package, self.folder = found(self.name, "--simumax", "simumax.core.perf_llm", folder)
        self._perf: Any = package.PerfLLM
        self._config: Any = importlib.import_module("simumax.core.config")
        place = self.folder / "configs" / "system"
        try:
            self._files = {name: json.loads((place / f"{name}.json").read_text()) for name in (_A100, _B200)}
        except OSError as error:
            raise MissingPeerError(f"{self.name} is skipped: {error}; give --simumax DIR") from None

    def seconds(self, request: Request) -> float:
        """Return the seconds of one step."""
        case = case_of(request)
        if request.strategy.zero == 3:
            raise NotExpressibleError("sharded weights")
        if case.layers % request.strategy.pp:
            raise NotExpressibleError("stages of unequally many layers")
        if case.compute not in ("bf16", "fp16", "fp8"):
            raise NotExpressibleError(f"products in {case.compute}")
        if case.compute == "fp8" and request.cluster.device.architecture in _LATEST:
            raise NotExpressibleError("products in fp8, of which its file of the B200 has no efficiency")
        if request.strategy.recompute not in _RECOMPUTES:
            raise NotExpressibleError(f"recompute={request.strategy.recompute}")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                perf = self._perf()
                perf.configure(
                    strategy_config=self._config.StrategyConfig(**_strategy(case)),
                    model_config=self._config.ModelConfig(**_model(case)),
                    system_config=self._config.SystemConfig.init_from_dict(self._system_file(case)),
                )
                perf.run_estimate()
                said = perf.analysis_cost()
            except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
                raise NotExpressibleError(str(error).partition("\n")[0] or "refused by its own checks") from None
        tokens = case.seq * request.global_batch / request.strategy.num_ranks
        return tokens / float(said.get("throughput_per_accelerator"))

    def _system_file(self, case: Case) -> dict[str, Any]:
        """Return the system file of a case: that of the B200, or one with the catalog's rates."""
        cluster, device = case.request.cluster, case.request.cluster.device
        made: dict[str, Any] = copy.deepcopy(self._files[_B200])
        made["num_per_node"] = min(domain_devices(cluster), cluster.num_devices)
        networks = made["networks"]
        networks["inter_node"]["bandwidth"]["gbps"] = node_bandwidth(cluster) / 1e9
        if device.name == "b200-sxm":
            return made
        if device.architecture not in _LATEST:
            made["accelerator"] = copy.deepcopy(self._files[_A100]["accelerator"])
        wide = device.peak("bf16" if device.supports("bf16") else "fp16")
        for name, operator in made["accelerator"]["op"].items():
            operator["tflops"] = (device.peak("fp8") if name.startswith("fp8") else wide) / 1e12
        for memory in made["accelerator"]["bandwidth"].values():
            memory["gbps"] = device.memory_bandwidth / 1e9
        for name in ("low_intra_node", "high_intra_node"):
            networks[name]["bandwidth"]["gbps"] = cluster.intra_node.bandwidth / 1e9
        return made


def _model(case: Case) -> dict[str, Any]:
    return {
        "hidden_size": case.hidden,
        "head_num": case.heads,
        "kv_head_num": case.kv_heads,
        "head_size": case.head_dim,
        "intermediate_size": case.ffn,
        "layer_num": case.layers,
        "vocab_size": case.vocab,
        "use_swiglu": case.gated,
        "model_name": "case",
    }


def _strategy(case: Case) -> dict[str, Any]:
    strategy = case.request.strategy
    return {
        "seq_len": case.seq,
        "micro_batch_size": case.micro_batch,
        "micro_batch_num": strategy.num_microbatches,
        "dtype": "bf16",
        "fp8": case.compute == "fp8",
        "world_size": strategy.num_ranks,
        "tp_size": strategy.tp,
        "pp_size": strategy.pp,
        "enable_sequence_parallel": strategy.sequence_parallel,
        "interleaving_size": strategy.virtual_stages,
        "pp_comm_async": strategy.virtual_stages == 1,
        "zero_state": min(strategy.zero, 1),
        "enable_recompute": strategy.recompute != "none",
        "recompute_granularity": _RECOMPUTES[strategy.recompute],
        "recompute_layer_num": 0 if strategy.recompute == "none" else case.layers,
    }
