"""The format of PyTorch's profiler (Kineto): one struct per event, and what its categories mean.

Releases spell categories differently (``Kernel`` and ``kernel``, ``Runtime`` and ``cuda_runtime``); so do CUDA and ROCm
name their calls. Only fields that have a meaning here are declared, so that all others are skipped without being made.
"""

from __future__ import annotations

import enum
import re
from typing import Final, TypeAlias

import msgspec

Number: TypeAlias = int | float | str | None
"""A number as traces write it; some releases write handles as text (``"0x0"``)."""

UNSTATED: Final = -1
"""Value of a number that an event does not state, in structs as in columns."""
ABSENT: Final = msgspec.Raw(b"")
"""Value of a field that an event does not have."""


class Kind(enum.IntEnum):
    """What an event is."""

    OPERATOR = 0  # an operator on a thread of the host
    ANNOTATION = 1  # a range that the program or the framework named
    CALL = 2  # a call of the driver or its runtime
    KERNEL = 3
    COPY = 4
    FILL = 5
    SYNC = 6  # a wait that the profiler recorded
    DEVICE_ANNOTATION = 7


DEVICE_KINDS: Final = (Kind.KERNEL, Kind.COPY, Kind.FILL)

_KINDS: Final[dict[str, Kind]] = {
    "operator": Kind.OPERATOR,
    "cpu_op": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "hip_driver": Kind.CALL,
    "runtime": Kind.CALL,
    "driver": Kind.CALL,
    "kernel": Kind.KERNEL,
    "memcpy": Kind.COPY,
    "gpu_memcpy": Kind.COPY,
    "memset": Kind.FILL,
    "gpu_memset": Kind.FILL,
    "cuda_sync": Kind.SYNC,
    "sync": Kind.SYNC,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION,
}
_CALLS: Final = re.compile(r"_(?:runtime|driver)$", re.IGNORECASE)
"""Categories of calls of other vendors: ``xpu_runtime``, ``mtia_runtime``, ``privateuse1_runtime``."""
_NAMED_RANGE: Final = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)")
"""Ranges that early releases filed under operators."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that mean something here."""

    correlation: Number = UNSTATED
    stream: Number = UNSTATED
    device: Number = UNSTATED
    external: Number = msgspec.field(name="External id", default=UNSTATED)
    external_old: Number = msgspec.field(name="external id", default=None)
    nbytes: Number = msgspec.field(name="bytes", default=UNSTATED)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=ABSENT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=ABSENT)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=ABSENT)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=ABSENT)
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    sequence: Number = msgspec.field(name="Sequence number", default=UNSTATED)
    record: Number = msgspec.field(name="Record function id", default=UNSTATED)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: Number = msgspec.field(name="Group size", default=None)
    dtype: str | int | None = None
    group_name: str | None = msgspec.field(name="Process Group Name", default=None)
    sync_kind: str | None = msgspec.field(name="cuda_sync_kind", default=None)
    waits_for_stream: Number = msgspec.field(name="wait_on_stream", default=None)
    waits_for_record: Number = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


class Event(msgspec.Struct, gc=False):
    """One event; times stay text until a whole chunk is converted at once."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: Args | None = None


class DistributedInfo(msgspec.Struct):
    """Who recorded the trace."""

    rank: Number = None
    world_size: Number = None


class DeviceProperties(msgspec.Struct):
    """A device of the machine, as the profiler describes it."""

    name: str = ""
    index: Number = msgspec.field(name="id", default=0)
    compute_units: Number = msgspec.field(name="numSms", default=0)
    memory: Number = msgspec.field(name="totalGlobalMem", default=0)

    @property
    def memory_bytes(self) -> float:
        """The bytes of its memory; 0 if not known."""
        try:
            return float(self.memory or 0)
        except ValueError:
            return 0.0


class Header(msgspec.Struct):
    """What stands beside the events of a trace."""

    distributed: DistributedInfo | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[DeviceProperties] | None = msgspec.field(name="deviceProperties", default=None)


def kind_of_event(category: str, name: str) -> Kind | None:
    """Return the kind of a complete event, or ``None`` if it is of no use here (such as a Python function)."""
    kind = _KINDS.get(category.lower())
    if kind is None and _CALLS.search(category):
        kind = Kind.CALL
    if kind is Kind.OPERATOR and _NAMED_RANGE.match(name):
        return Kind.ANNOTATION
    return kind
