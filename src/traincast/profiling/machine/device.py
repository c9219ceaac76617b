"""The name of this machine's device, and its free memory."""

from __future__ import annotations

import math
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from traincast.errors import RequestError, UnknownNameError
from traincast.graph.capture.capture import require_torch

DEVICES: Final = ("cpu", "cuda")


def check_device(device: str) -> None:
    """Refuse a device type that is unknown or that this machine does not have."""
    if device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    require_torch()
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(f"device 'cuda': PyTorch {torch.__version__} sees no GPU here; use --device cpu")


def device_name(device: str, *, threads: int = 1) -> str:
    """``NVIDIA A100-SXM4-80GB``, or a processor with the cores used: ``AMD EPYC 7763 (1 of 64 cores)``."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return f"{_processor()} ({threads} of {os.cpu_count() or 1} cores)"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return " ".join((found.group(1) if found else platform.processor() or platform.machine() or "CPU").split())


def framework_name(device: str) -> str:
    """``PyTorch 2.13.0 cpu`` or ``PyTorch 2.4.1 cu121``."""
    import torch

    version, _, build = str(torch.__version__).partition("+")
    if device == "cpu":
        return f"PyTorch {version} cpu"
    cuda = "cu" + str(torch.version.cuda).replace(".", "") if torch.version.cuda else "ROCm"
    return f"PyTorch {version} {build or cuda}"


def free_memory(device: str) -> float:
    """Bytes of free memory on the host or on the current GPU."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.M)
    return min(float(found.group(1)) * 1024 if found else 0.0, _container_room())


def _container_room() -> float:
    """Bytes that the control group of a container has left; without a limit, infinitely many."""
    old = "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"
    for files in (("memory.max", "memory.current"), old):
        with suppress(OSError, ValueError):  # a group without a limit says "max"
            most, used = (float(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")) for name in files)
            return max(0.0, most - used)
    return math.inf
