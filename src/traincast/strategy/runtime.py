"""The habits of a training framework: what it fuses, overlaps, buckets and holds in memory. One TOML each."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from traincast.errors import UnknownNameError
from traincast.schema import Text, read_table, read_toml, table_of

Fusion: TypeAlias = Literal["norm", "elementwise", "loss", "gradients"]
Attention: TypeAlias = Literal["flash", "flash-2", "unfused", "eager"]
GradientCopies: TypeAlias = Literal["none", "shapes", "all"]
Reports: TypeAlias = Literal["first", "fullest"]
Counter: TypeAlias = Literal["allocated", "reserved"]
StageCut: TypeAlias = Literal["layers", "weights"]
GradientDType: TypeAlias = Literal["", "fp32", "bf16", "fp16"]
Amount: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e15)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a framework does with a strategy.

    ``kernels`` names the framework whose measured operators to prefer, as tables of measurements spell it.
    ``attention`` is fused with kernels made for the device (``flash``) or for Ampere (``flash-2``), or leaves its
    scores in memory.

    Host costs are in kernel launches of the cluster's host: ``operator_launches`` per forward operator,
    ``backward_launches`` per backward one (autograd's are cheaper), ``collective_launches`` per
    collective, ``send_launches`` per send of a pipeline whose sides agree first on what is sent (the host then waits
    for the device), ``block_launches`` of bookkeeping per block and pass, ``microbatch_launches`` per
    microbatch and pass; with ``cuda_graphs`` a block's pass is one launch. Where a pipeline crosses nodes, hosts keep
    one another waiting: ``wait_launches`` per rank of a collective that compute waits for. With ``sync_passes`` the
    host begins a pass when the device has ended the one before. ``overlap_tensor`` and ``overlap_experts``
    are the parts of the products beside them that tensor-parallel and expert traffic can hide behind. Gradients travel
    in ``reduce_dtype`` ('': as they are kept, or with sharded parameters as these are gathered).

    Pipelines are cut by counting layers or by their weights (``stage_cut``); one that ``fills_pipeline`` refuses fewer
    microbatches than its warm-up has.

    Memory: ``lean_kernels`` for attention and routing keep only what their backward reads. Beside sums of gradients in
    a wider dtype there are ``gradient_copies`` as backward wrote them: none for longer than their own product, one of
    each shape, or all of a stage. The loss has ``logits_copies`` of the logits in fp32 beside those it keeps,
    ``tensor_buffers`` whole tensors are in use around tensor-parallel collectives, and ``held_collectives`` more
    cannot be reused while the host runs ahead of the device. ``workspace_bytes`` are the libraries'.
    ``context_bytes`` is what the driver holds, ``allocator_overhead`` the fraction of tensors lost to fragmentation,
    ``buffer_bytes`` what each communicator holds. Its log ``reports`` the first rank or the fullest, by a ``counter``
    of what its allocator has given out or has reserved. What a rank holds beyond weights, gradients and optimizer
    states is between ``memory_low`` and ``memory_high`` times its forecast in 90 % of runs (see
    :mod:`traincast.strategy.fits`); the defaults are for frameworks whose memory nobody measured.
    """

    name: str
    description: str
    frameworks: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    attention: Attention = "flash"
    kernels: str = ""
    operator_launches: Amount = 2.0
    backward_launches: Amount = 1.2
    collective_launches: Amount = 6.0
    wait_launches: Amount = 0.0
    block_launches: Amount = 0.0
    microbatch_launches: Amount = 0.0
    sync_passes: bool = False
    bucket_bytes: Amount = 25e6
    overlap_gradients: bool = True
    overlap_sends: bool = False
    send_launches: Amount = 0.0
    overlap_tensor: Amount = 0.0
    overlap_experts: Amount = 0.0
    cuda_graphs: bool = False
    gradient_dtype: GradientDType = ""
    reduce_dtype: GradientDType = ""
    servers: Whole = 0
    recompute: Literal["none", "selective", "full"] = "none"
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    stage_cut: StageCut = "layers"
    fills_pipeline: bool = False
    prefetch_blocks: Whole = 1
    lean_kernels: bool = False
    gradient_copies: GradientCopies = "none"
    logits_copies: Amount = 1.0
    tensor_buffers: Amount = 4.0
    held_collectives: Amount = 0.0
    workspace_bytes: Amount = 0.1e9
    reports: Reports = "fullest"
    counter: Counter = "allocated"
    context_bytes: Amount = 0.6e9
    allocator_overhead: Amount = 0.05
    buffer_bytes: Amount = 0.15e9
    memory_low: Annotated[float, Meta(ge=0.01, le=1.0)] = 0.6
    memory_high: Annotated[float, Meta(ge=1.0, le=100.0)] = 2.0


_DIRECTORY: Final = "runtimes"


@cache
def runtime_names() -> tuple[str, ...]:
    """Names of the bundled runtimes."""
    entries = resources.files("traincast.strategy").joinpath(_DIRECTORY).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def load_runtime(spec: str) -> Runtime:
    """A bundled runtime by name, or a user's own from a ``.toml`` file (which may ``extends`` a bundled one)."""
    if spec.endswith(".toml"):
        path = Path(spec)
        return _read(read_toml(path, "runtime file"), name=path.stem, where=f"{path.name}:")
    return _bundled(spec)


@cache
def _bundled(name: str) -> Runtime:
    if name not in runtime_names():
        raise UnknownNameError("runtime", name, runtime_names(), hint="or give a .toml file")
    text = resources.files("traincast.strategy").joinpath(_DIRECTORY, f"{name}.toml").read_text(encoding="utf-8")
    return _read(tomllib.loads(text), name=name, where=f"{name}.toml:")


def _read(data: dict[str, Any], *, name: str, where: str) -> Runtime:
    """The runtime that a file describes: what it sets, over what the bundled runtime that it extends says."""
    values = read_table(data, table_of(Runtime, extends=Text), where)
    parent = values.pop("extends", None)
    base = _bundled(parent) if parent is not None else Runtime(name=name, description="")
    return replace(base, **{"name": name, **values})


_HOSTS: Final = frozenset({"pytorch", "pytorch1", "accelerate"})
"""Spellings that only say what a framework is built on or started by: any other one in the same text says more."""


@lru_cache(maxsize=256)
def find_runtime(framework: str) -> Runtime:
    """The bundled runtime that says it covers ``framework``, as a measured table spells it.

    Of several spellings in the text the longest decides, those of a mere host (``PyTorch FSDP 2.4``) last.
    """
    best: tuple[bool, int, str] | None = None
    for name in runtime_names():
        for spelling in (name, *_bundled(name).frameworks):
            plain = "".join(c for c in spelling.lower() if c.isalnum())
            key = (plain not in _HOSTS, len(plain), name)
            if _spelt(spelling).search(framework.lower()) and (best is None or key[:2] > best[:2]):
                best = key
    if best is None:
        raise UnknownNameError("framework", framework, runtime_names())
    return _bundled(best[2])


@cache
def _spelt(spelling: str) -> re.Pattern[str]:
    """Finds a spelling in lower-case text, whatever stands between its words; a release must end where it ends."""
    words = re.findall(r"[a-z0-9]+", spelling.lower())
    return re.compile(r"[^a-z0-9]*".join(words) + (r"(?!\d)" if words[-1][-1].isdigit() else ""))
