"""Use of NVIDIA GPUs, as NVML reports it; the package ``nvidia-ml-py`` (``pynvml``) is optional.

NVML tells the share of time in which a kernel ran, and in which memory was read or written, over its own last sampling
interval (a sixth of a second to a second, by the product). So bursts shorter than that are blurred.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple


class GpuReading(NamedTuple):
    """Seconds in which GPUs ran kernels and in which their memory was used, added up over all of them."""

    busy_s: float
    memory_s: float
    gpus: int


class GpuReader:
    """Adds up the use of the GPUs on which some processes compute; while none does, of all GPUs."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        count = library.nvmlDeviceGetCount()
        self._handles = [library.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        self._chosen = self._handles
        self._busy_s = self._memory_s = 0.0
        self._last_s: float | None = None

    @classmethod
    def found(cls) -> GpuReader | None:
        """The reader of this machine's GPUs, or ``None`` if it has none, or ``pynvml`` is not installed."""
        try:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
        except Exception:  # no package, or no driver: each has its own exception
            return None
        reader = cls(library)
        return reader if reader._handles else None

    def choose(self, pids: Collection[int]) -> None:
        """Count only the GPUs on which one of ``pids`` computes, if there is any."""
        used = []
        for handle in self._handles:
            with suppress(Exception):  # not supported by every product
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                if any(process.pid in pids for process in running):
                    used.append(handle)
        self._chosen = used or self._handles

    def read(self, now_s: float) -> GpuReading:
        """The totals since the first reading: what NVML reports now counts since the reading before."""
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        for handle in self._chosen:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
            self._busy_s += rates.gpu / 100.0 * since_s
            self._memory_s += rates.memory / 100.0 * since_s
        return GpuReading(self._busy_s, self._memory_s, len(self._chosen))

    def close(self) -> None:
        """Give up the library."""
        self._nvml.nvmlShutdown()
