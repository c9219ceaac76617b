"""llm-analysis, asked for one step; ``benchmarks/peers/__init__.py`` says what is assumed."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.case import Case, NotExpressibleError, case_of, found, node_bandwidth
from traincast.strategy import Request

_FLOPS: Final = 0.5
_MEMORY: Final = 0.9
_OWN: Final = {
    "a100-pcie-40gb": "a100-pcie-40gb",
    "a100-pcie-80gb": "a100-pcie-80gb",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-sxm4-80gb": "a100-sxm-80gb",
    "h100-pcie-80gb": "h100-pcie-80gb",
    "h100-sxm5-80gb": "h100-sxm-80gb",
    "v100-pcie-16gb": "v100-pcie-16gb",
    "v100-pcie-32gb": "v100-pcie-32gb",
    "v100-sxm2-16gb": "v100-sxm-16gb",
    "v100-sxm2-32gb": "v100-sxm-32gb",
}
"""Devices of the catalog that llm-analysis has a file for."""
_TYPES: Final = {"bf16": 16, "fp16": 16, "fp8": 8}
_RECOMPUTES: Final = {"none": "NONE", "selective": "ATTN_COMPUTE", "full": "FULL"}


class LlmAnalysis:
    """llm-analysis as installed or checked out."""

    name = "llm-analysis"
    version = ""

    def __init__(self, folder: Path | None = None) -> None:
        self._made, self.folder = found(self.name, "--llm-analysis", "llm_analysis.analysis", folder)
        self._config: Any = importlib.import_module("llm_analysis.config")
        importlib.import_module("llm_analysis.logger").logger.setLevel(logging.CRITICAL)

    def seconds(self, request: Request) -> float:
        """Return the seconds of one step."""
        case, strategy = case_of(request), request.strategy
        if strategy.tp > request.cluster.devices_per_node:
            raise NotExpressibleError("tensor parallelism between nodes")
        if case.compute not in _TYPES:
            raise NotExpressibleError(f"products in {case.compute}")
        if strategy.recompute not in _RECOMPUTES:
            raise NotExpressibleError(f"recompute={strategy.recompute}")
        if case.heads * case.head_dim != case.hidden:
            raise NotExpressibleError("heads wider than the model")
        bits = _TYPES[case.compute]
        sharded = (strategy.shard or strategy.dp) if strategy.zero else strategy.dp
        try:
            analysis = self._made.LLMAnalysis(
                self._model(case),
                self._gpu(case),
                self._config.DtypeConfig(name="case", weight_bits=bits, activation_bits=bits, embedding_bits=16),
                self._config.ParallelismConfig(
                    tp_size=strategy.tp,
                    pp_size=strategy.pp,
                    dp_size=sharded,
                    rdp_size=strategy.dp // sharded,
                    sp_size=strategy.tp if strategy.sequence_parallel else 1,
                ),
                flops_efficiency=_FLOPS,
                hbm_memory_efficiency=_MEMORY,
            )
            said = analysis.training(
                batch_size_per_gpu=case.micro_batch,
                gradient_accumulation_steps=strategy.num_microbatches,
                global_batch_size=request.global_batch,
                seq_len=case.seq,
                activation_recomputation=self._made.ActivationRecomputation[_RECOMPUTES[strategy.recompute]],
                ds_zero=self._made.DSZeRO(strategy.zero),
            )
        except AssertionError as error:
            raise NotExpressibleError(str(error).partition("\n")[0] or "refused by its own checks") from None
        return float(said["latency_per_iter"])

    def _model(self, case: Case) -> Any:
        return self._config.ModelConfig(
            name="case",
            num_layers=case.layers,
            n_head=case.heads,
            hidden_dim=case.hidden,
            vocab_size=case.vocab,
            max_seq_len=case.seq,
            num_key_value_heads=case.kv_heads,
            ffn_embed_dim=case.ffn,
            mlp_gated_linear_units=case.gated,
        )

    def _gpu(self, case: Case) -> Any:
        cluster, device = case.request.cluster, case.request.cluster.device
        if device.name in _OWN:
            return self._config.get_gpu_config_by_name(_OWN[device.name])
        rates = {name: device.peak(name) / 1e12 for name in ("bf16", "fp16", "fp8") if device.supports(name)}
        return self._config.GPUConfig(
            name=device.name,
            mem_per_GPU_in_GB=device.memory_bytes / 1e9,
            hbm_bandwidth_in_GB_per_sec=device.memory_bandwidth / 1e9,
            intra_node_bandwidth_in_GB_per_sec=cluster.intra_node.bandwidth / 1e9,
            intra_node_min_message_latency=cluster.intra_node.latency_s,
            peak_fp16_TFLOPS=rates.get("bf16", rates.get("fp16")),
            peak_i8_TFLOPS=rates.get("fp8"),
            inter_node_bandwidth_in_GB_per_sec=node_bandwidth(cluster) / 1e9,
        )
