"""What calls of the driver do: which wait for the device, and which make streams wait; CUDA's names and ROCm's."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traincast.traces.files.trace import Flags, ProfilerTrace

_API: Final = r"^(?:cuda|cu|hip|musa)"
COPIES: Final = re.compile(_API + r"(?:Memcpy)")
STREAM_SYNC: Final = re.compile(_API + r"StreamSynchronize|^aclrtSynchronizeStream")
DEVICE_SYNC: Final = re.compile(
    _API + r"(?:DeviceSynchronize|CtxSynchronize|Free$|FreeHost|HostUnregister)|^urQueueFinish|^aclrtSynchronizeDevice"
)
"""Calls that return when the whole device is done; freeing memory is one of them."""
EVENT_SYNC: Final = re.compile(_API + r"EventSynchronize|^urEventWait|^aclrtSynchronizeEvent")
STREAM_WAIT: Final = re.compile(_API + r"StreamWaitEvent")
GRAPH_LAUNCH: Final = re.compile(_API + r"GraphLaunch")

HOLDING_COPY: Final = re.compile(r"^(?:hipMemcpyWithStream|(?:cuda|hip)Memcpy(?:2D|DtoH|HtoD)?)$")
"""Copies that always hold their caller, whatever the profiler calls the copy."""
NARROW: Final = re.compile(r"tf32|s1688|s16816gemm_tf")
"""Kernels that multiply fp32 numbers on tensor cores."""

_BLOCKING_COPY: Final = re.compile(r"Pageable|DtoH|HtoD|Host -> Device|Device -> Host", re.IGNORECASE)
_COMMUNICATION: Final = re.compile(r"nccl|rccl|msccl|oneccl|c10d::|gloo:|nvshmem", re.IGNORECASE)


def matching(trace: ProfilerTrace, pattern: re.Pattern[str]) -> Flags:
    """Return for each event whether its name matches."""
    return trace.named(np.array([pattern.search(name) is not None for name in trace.names], dtype=bool))


def may_block(copy_name: str) -> bool:
    """Whether a copy of this name may hold its caller: one between host and device, not within a device."""
    return _BLOCKING_COPY.search(copy_name) is not None


def is_communication(kernel_name: str) -> bool:
    """Whether a kernel moves data between ranks."""
    return _COMMUNICATION.search(kernel_name) is not None
