"""Runtimes: what a training framework fuses, overlaps, buckets and holds in memory. Each is one TOML file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from traincast.errors import RequestError, UnknownNameError, expect
from traincast.schema import Text, read_table, read_toml, table_of
from traincast.strategy.program.recompute import RECOMPUTATIONS

Fusion: TypeAlias = Literal["norm", "batch_norm", "half_batch_norm", "elementwise", "loss", "gradients"]
Attention: TypeAlias = Literal["flash", "flash-1", "flash-2", "cudnn-8", "unfused", "eager"]
GradientCopies: TypeAlias = Literal["none", "shapes", "all"]
Reports: TypeAlias = Literal["first", "fullest"]
Counter: TypeAlias = Literal["allocated", "reserved", "device"]
StageCut: TypeAlias = Literal["layers", "weights"]
BucketCut: TypeAlias = Literal["block", "parameter"]
GradientDType: TypeAlias = Literal["", "fp32", "bf16", "fp16"]
Amount: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e15)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Release: TypeAlias = Annotated[str, Meta(max_length=20, pattern=r"^(\d+(\.\d+)*)?$")]
Dispatcher: TypeAlias = Literal["all_to_all", "fused"]
DispatchDType: TypeAlias = Literal["", "fp8"]
SinkAttention: TypeAlias = Literal["flash", "flash-2"]
GroupedKernel: TypeAlias = Literal["", "looped", "fused"]
if TYPE_CHECKING:
    RecomputationName: TypeAlias = str
else:
    RecomputationName = Literal[tuple(RECOMPUTATIONS)]  # a runtime file may name any technique in this dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What a framework does with mixtures of experts from release ``since`` on.

    It applies to runs whose products have one of the dtypes ``products``, on devices of one of the ``architectures``
    (all if empty), and on machines that join at least ``joined`` devices by their fast links. If not ``hybrids``, it
    does not apply to models with state-space layers. Fields of :class:`Runtime` that are ``None`` stay as they are.
    """

    since: Release = ""
    products: tuple[Text, ...] = ()
    architectures: tuple[Text, ...] = ()
    joined: Whole = 0
    hybrids: bool = True
    dispatcher: Dispatcher | None = None
    dispatch_dtype: DispatchDType | None = None
    grouped: GroupedKernel | None = None
    routing_launches: Amount | None = None
    overlap_experts: Amount | None = None
    overlap_batches: Share | None = None
    overlap_batches_near: bool | None = None
    cuda_graphs: bool | None = None
    sinks: SinkAttention | None = None
    reduce_dtype: GradientDType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a framework carries out a strategy.

    With ``written_out``, norms and rotary positions are single kernels, as in Hugging Face's modules
    (:mod:`traincast.strategy.program.written_out`); with ``repeats_keys``, keys and values are also copied for all
    heads that share them. With ``autocast``, mixed precision is that of ``torch.autocast`` on weights in fp32
    (:mod:`traincast.strategy.program.autocast`); otherwise all activations have 16 bits.

    ``kernels`` names the framework whose measured operators are preferred, spelt as in tables of measurements.
    ``attention`` is fused, with kernels made for the device (``flash``), for Ampere (``flash-2``; ``flash-1``: those
    before them) or for early Hopper (``cudnn-8``), or it writes its scores to memory (``unfused``, ``eager``).

    Host costs are in kernel launches of the cluster's host: ``operator_launches`` per forward operator,
    ``backward_launches`` per backward operator (autograd's are cheaper), ``collective_launches`` per collective,
    ``block_launches`` of bookkeeping per block and pass, and ``microbatch_launches`` per microbatch and pass.
    The update of each parameter takes ``parameter_launches``, for which the device waits: gradients are checked and
    unscaled, states and weights are changed, gradients are cleared, by kernels that are shorter than their launch.
    Ranks of a node share its host: each further one prolongs this work, and the host's own work on samples
    (:mod:`traincast.strategy.program.host_work`), by the share ``crowding``.
    With ``sorts_ids``, the gradient of an embedding table is made of slices: the device sorts the ids of a batch and
    adds up the rows of equal ones before it updates them.
    ``send_launches`` is the cost of a send in a pipeline whose two sides first agree on the size of the message; the
    host then waits for the device. With ``cuda_graphs``, the pass of a block is one launch. If a pipeline crosses
    nodes, hosts wait for one another: ``wait_launches`` per rank of a collective that compute waits for. With
    ``sync_passes``, the host begins a pass only when the device has ended the previous one.

    Tensor groups split embedding, logits and loss by vocabulary, unless ``split_vocabulary`` is off.
    ``overlap_tensor`` and ``overlap_experts`` are the shares of the neighbouring products that tensor-parallel and
    expert traffic can overlap with. Where microbatches are interleaved, the expert traffic of one microbatch may
    instead overlap with the share ``overlap_batches`` of another's compute: between nodes, and with
    ``overlap_batches_near`` also within a domain of fast links. The ``dispatcher`` sends a token once per expert
    (``all_to_all``), or once per rank and node that has any of its experts, and reorders tokens on the way (``fused``).
    Forward sends them in ``dispatch_dtype``, if it is given, and results and gradients in that of activations.
    The experts' products are one kernel per expert (``looped``), or one kernel for all that also does what lies between
    them (``fused``); ``grouped`` = "" means kernels of inference. The device waits ``routing_launches`` in each layer
    with experts while the host reads how many tokens each expert got, unless shapes are fixed by a capacity or a
    recorded graph. Attention with sinks runs by ``sinks`` kernels; ``flash-2`` computes hidden scores of a window too.
    ``habits`` change these settings from a release on (:mod:`traincast.strategy.releases`); ``release`` is the
    framework's own number, empty for the newest.

    Gradients are sent in ``reduce_dtype``. If it is empty, they are sent in the dtype
    in which they are stored or, with sharded parameters, in the dtype in which parameters are gathered.

    Gradients leave in buckets of ``bucket_bytes``. The first bucket may be smaller: ``first_bucket_bytes``, where 0
    means the size of the others. With ``bucket_cut`` = ``block``, a bucket closes at the end of the block that fills
    it. With ``parameter``, it closes inside a block, as soon as the gradient that fills it is complete.

    Without ``overlap_shards``, compute waits for every gather of sharded parameters and every reduction of their
    gradients. With ``root_shard``, all parameters outside the repeated layers are one group: gathered at the start of
    forward, kept until backward ends, and reduced once.

    With ``rendezvous``, the bytes of a pipeline's message move only once both sides have asked for it, and each stage
    posts and awaits its messages as PyTorch's schedules do (:mod:`traincast.strategy.exchange.rendezvous`).

    ``stage_cut`` says whether pipelines are cut by counting layers or by their weights. A runtime that
    ``fills_pipeline`` refuses fewer microbatches than the warm-up of the pipeline needs. ``further_tokens`` says that
    recipes train models to predict tokens after the next one if they were published so, ``adapter_dropout`` that they
    drop inputs of adapters; measured rows only.

    With ``lean_recompute``, a recomputed block runs again only up to its last product, whose result no backward reads:
    a compiler leaves out what nobody uses.

    Memory: with ``lean_kernels``, attention and routing keep only the tensors that their backward reads. If gradients
    are summed in a wider dtype, there are also ``gradient_copies`` in the narrow dtype: ``none`` (each is freed after
    its own product), one of each shape (``shapes``), or ``all`` of a stage. The loss holds ``logits_copies`` of the
    logits in fp32 in addition to those that it keeps for backward. With ``loss_chunks``, the projection to the
    vocabulary and the loss run in that number of pieces, forward and backward, and no logits are kept. A block that is
    recomputed keeps ``kept_inputs`` copies of its input. With ``frees_gradients``, gradients do not exist before
    backward makes them, unless several microbatches are accumulated. The update needs ``update_share`` times the bytes
    of the optimizer's states for a moment; it reads and writes its tensors ``update_passes`` times. With
    ``flat_gradients``, it copies gradients as DeepSpeed's ZeRO does, into blocks that activations cannot use
    (:mod:`traincast.strategy.memory.update`). ``tensor_buffers`` whole tensors are in use around tensor-parallel
    collectives, and ``held_collectives`` more cannot be reused while the host runs ahead of the device. Libraries hold
    ``workspace_bytes``, the driver ``context_bytes``, and each communicator ``buffer_bytes``. Fragmentation adds
    ``allocator_overhead`` times the bytes of all tensors. The framework's log ``reports`` the first rank or the fullest
    one, by a ``counter`` of allocated or reserved memory, or of all memory that the ``device`` has in use. In 90 % of
    runs, the memory of a rank beyond weights, gradients and optimizer states is between ``memory_low`` and
    ``memory_high`` times its forecast (see :mod:`traincast.strategy.memory.fits`); the defaults are for frameworks
    without measurements.
    """

    name: str
    description: str
    frameworks: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    written_out: bool = False
    repeats_keys: bool = False
    autocast: bool = False
    attention: Attention = "flash"
    kernels: str = ""
    operator_launches: Amount = 2.0
    backward_launches: Amount = 1.2
    collective_launches: Amount = 6.0
    wait_launches: Amount = 0.0
    block_launches: Amount = 0.0
    microbatch_launches: Amount = 0.0
    parameter_launches: Amount = 0.0
    crowding: Share = 0.0
    sorts_ids: bool = False
    sync_passes: bool = False
    bucket_bytes: Amount = 25e6
    first_bucket_bytes: Amount = 0.0
    bucket_cut: BucketCut = "block"
    overlap_gradients: bool = True
    overlap_shards: bool = True
    root_shard: bool = False
    overlap_sends: bool = False
    rendezvous: bool = False
    send_launches: Amount = 0.0
    overlap_tensor: Amount = 0.0
    overlap_experts: Amount = 0.0
    overlap_batches: Share = 0.0
    overlap_batches_near: bool = False
    dispatcher: Dispatcher = "all_to_all"
    dispatch_dtype: DispatchDType = ""
    grouped: GroupedKernel = ""
    routing_launches: Amount = 0.0
    sinks: SinkAttention = "flash"
    release: Release = ""
    habits: tuple[Habit, ...] = ()
    cuda_graphs: bool = False
    gradient_dtype: GradientDType = ""
    reduce_dtype: GradientDType = ""
    servers: Whole = 0
    recompute: RecomputationName = "none"
    lean_recompute: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    split_vocabulary: bool = True
    stage_cut: StageCut = "layers"
    fills_pipeline: bool = False
    further_tokens: bool = False
    prefetch_blocks: Whole = 1
    lean_kernels: bool = False
    gradient_copies: GradientCopies = "none"
    logits_copies: Amount = 1.0
    kept_inputs: Amount = 1.0
    frees_gradients: bool = False
    update_share: Amount = 0.0
    flat_gradients: bool = False
    adapter_dropout: bool = False
    update_passes: Annotated[int, Meta(ge=1, le=100)] = 1
    loss_chunks: Whole = 0
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
    """Names of the runtimes that ship with Traincast."""
    entries = resources.files("traincast.strategy").joinpath(_DIRECTORY).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def load_runtime(spec: str) -> Runtime:
    """Returns a bundled runtime by name, or the one in a ``.toml`` file, which may extend a bundled one.

    Either may be followed by the release of the framework: ``megatron-bridge:release=26.04``.
    """
    expect("runtime", spec, str, "a name such as megatron, or the path of a TOML file")
    name, says, release = spec.partition(":release=")
    if name.endswith(".toml"):
        path = Path(name)
        runtime = _read(read_toml(path, "runtime file"), name=path.stem, where=f"{path.name}:")
    else:
        runtime = _bundled(name)
    if not says:
        return runtime
    if not runtime.habits:
        raise RequestError(f"runtime {name} has no habits that depend on its release; leave out :release={release}")
    if not re.fullmatch(r"\d+(\.\d+)*", release):
        raise RequestError(f"release {release!r} of {name}: expected a number such as 26.04")
    return replace(runtime, release=release)


@cache
def _bundled(name: str) -> Runtime:
    if name not in runtime_names():
        raise UnknownNameError("runtime", name, runtime_names(), hint="or give a .toml file")
    text = resources.files("traincast.strategy").joinpath(_DIRECTORY, f"{name}.toml").read_text(encoding="utf-8")
    return _read(tomllib.loads(text), name=name, where=f"{name}.toml:")


def _read(data: dict[str, Any], *, name: str, where: str) -> Runtime:
    """The runtime that a file describes: the bundled runtime that it extends, changed by the file's own settings."""
    values = read_table(data, table_of(Runtime, without=("habits",), extends=Text, habits=tuple[Habit, ...]), where)
    for n, habit in enumerate(data.get("habits", ())):
        read_table(habit, table_of(Habit), f"{where} habits[{n}]")  # refuses keys that no habit has
    parent = values.pop("extends", None)
    base = _bundled(parent) if parent is not None else Runtime(name=name, description="")
    return replace(base, **{"name": name, **values})


_HOSTS: Final = frozenset({"pytorch", "pytorch1", "accelerate"})
"""Spellings of libraries that frameworks are built on or started by. Any other spelling in a text takes precedence."""


@lru_cache(maxsize=256)
def find_runtime(framework: str) -> Runtime:
    """Returns the bundled runtime for ``framework``, spelt as in tables of measurements.

    If the text contains several known spellings, the longest one counts. Spellings of the library that a framework is
    built on count only if there is no other: ``PyTorch FSDP 2.4`` is ``fsdp``.
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
    """A pattern that finds a spelling in lower-case text, with anything between words; a version must match fully."""
    words = re.findall(r"[a-z0-9]+", spelling.lower())
    return re.compile(r"[^a-z0-9]*".join(words) + (r"(?!\d)" if words[-1][-1].isdigit() else ""))
