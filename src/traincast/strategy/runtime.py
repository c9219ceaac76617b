"""Runtimes: what a training framework fuses, overlaps, buckets and holds in memory. Each is one TOML file.

A runtime has six tables: ``launches`` (what the host costs), ``kernels`` (what the device runs), ``exchange`` (what
ranks send each other, and when), ``experts`` (how tokens reach experts), ``memory`` (what is held beside the tensors of
the model) and ``defaults`` (what a strategy gets where it does not say otherwise). A file sets any of their fields; a
:class:`Habit` changes some of them from a release on.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

from msgspec import Meta

from traincast.errors import FileFormatError, RequestError, UnknownNameError, expect
from traincast.schema import Text, read_table, read_toml, table_of
from traincast.strategy.program.recompute import RECOMPUTATIONS

Amount: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e15)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Release: TypeAlias = Annotated[str, Meta(max_length=20, pattern=r"^(\d+(\.\d+)*)?$")]
Fusion: TypeAlias = Literal["norm", "batch_norm", "half_batch_norm", "elementwise", "loss", "gradients"]
Layout: TypeAlias = Literal["channels_first", "channels_last"]
LAYOUTS: Final[tuple[str, ...]] = get_args(Layout)
GradientDType: TypeAlias = Literal["", "fp32", "bf16", "fp16"]
if TYPE_CHECKING:
    RecomputationName: TypeAlias = str
else:
    RecomputationName = Literal[tuple(RECOMPUTATIONS)]  # a runtime file may name any technique in this dict


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTable:
    """What the host of a rank does, in kernel launches of the cluster's host, and when it waits for the device."""

    operator: Amount = 2.0
    """Launches per forward operator."""
    backward: Amount = 1.2
    """Launches per backward operator. Those of autograd are cheaper than those of forward."""
    prepared: Amount = 0.0
    """Additional launches per forward convolution or batch norm: a library makes descriptors, finds a workspace and
    chooses an algorithm."""
    prepared_backward: Amount = 0.0
    """The same per backward one, which has several kernels and adds up the gradients of its parameters."""
    collective: Amount = 6.0
    """Launches per collective or transfer."""
    block: Amount = 0.0
    """Launches of bookkeeping per block and pass."""
    microbatch: Amount = 0.0
    """Launches of bookkeeping per microbatch and pass."""
    step: Amount = 0.0
    """Launches of a script between two steps, for which the device waits: it reads the loss, clears gradients and
    copies a batch."""
    parameter: Amount = 0.0
    """Launches per parameter in the update, for which the device waits: gradients are checked and unscaled, states and
    weights are changed, gradients are cleared, by kernels that are shorter than their launch."""
    send: Amount = 0.0
    """Additional launches of a pipeline's send whose two sides first agree on the size of the message; the host then
    waits for the device."""
    wait: Amount = 0.0
    """Launches per rank of a collective that compute waits for, if a pipeline crosses nodes: hosts wait for one
    another."""
    crowding: Share = 0.0
    """The share by which each further rank of a node prolongs the updates of parameters and the host's work on
    samples (:mod:`traincast.strategy.program.host_work`). Ranks of a node share its host."""
    cuda_graphs: bool = False
    """Whether the pass of a block is one launch."""
    sync_passes: bool = False
    """Whether the host begins a pass only when the device has ended the previous one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Which kernels the device runs."""

    fusions: tuple[Fusion, ...] = ()
    """Operators that run as one kernel (:mod:`traincast.strategy.program.fusion`)."""
    attention: Literal["flash", "flash-1", "flash-2", "cudnn-8", "unfused", "eager"] = "flash"
    """Attention is fused, with kernels made for the device (``flash``), for Ampere (``flash-2``; ``flash-1``: those
    before them) or for early Hopper (``cudnn-8``), or it writes its scores to memory (``unfused``, ``eager``)."""
    sinks: Literal["flash", "flash-2"] = "flash"
    """Kernels of attention with sinks; ``flash-2`` also computes the scores that a window hides."""
    measured_with: str = ""
    """The framework whose measured operators are preferred, spelt as in tables of measurements."""
    layout: Layout = "channels_last"
    """How tensors of images with 16 bits lie in memory. Matrix units read channels last; with ``channels_first``,
    convolutions convert what they read and write (:mod:`traincast.estimate.operators.convolutions`)."""
    autocast: bool = False
    """Whether mixed precision is that of ``torch.autocast`` on weights in fp32
    (:mod:`traincast.strategy.program.autocast`). Otherwise all activations have 16 bits."""
    written_out: bool = False
    """Whether norms and rotary positions are single kernels, as in Hugging Face's modules
    (:mod:`traincast.strategy.program.written_out`)."""
    repeats_keys: bool = False
    """Whether, with ``written_out``, keys and values are also copied for all heads that share them."""
    lean_recompute: bool = False
    """Whether a recomputed block runs again only up to its last product, whose result no backward reads. A compiler
    leaves out what nobody uses."""
    sorts_ids: bool = False
    """Whether the gradient of an embedding table is made of slices: the device sorts the ids of a batch and adds up
    the rows of equal ids before it updates them."""
    update_passes: Annotated[int, Meta(ge=1, le=100)] = 1
    """How many times the update reads and writes its tensors: 1 for one fused kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTable:
    """What ranks send each other, in which pieces, and what it overlaps with."""

    reduce_dtype: GradientDType = ""
    """The dtype in which gradients are sent. If it is empty, they are sent in the dtype in which they are stored or,
    with sharded parameters, in the dtype in which parameters are gathered."""
    bucket_bytes: Amount = 25e6
    """Bytes of gradients that one collective exchanges."""
    first_bucket_bytes: Amount = 0.0
    """The same for the first bucket of a step; 0 means the size of the others."""
    bucket_cut: Literal["block", "parameter"] = "block"
    """With ``block``, a bucket closes at the end of the block that fills it. With ``parameter``, it closes inside a
    block, as soon as the gradient that fills it is complete."""
    overlap_gradients: bool = True
    """Whether gradients are exchanged while backward runs, or after it."""
    overlap_shards: bool = True
    """Whether sharded parameters are gathered and their gradients reduced while compute runs. Otherwise compute waits
    for each of these collectives."""
    root_shard: bool = False
    """Whether all parameters outside the repeated layers are one group: gathered at the start of forward, kept until
    backward ends, and reduced once. Read only without ``overlap_shards``."""
    overlap_tensor: Amount = 0.0
    """The share of the neighbouring product that tensor-parallel traffic can overlap with."""
    overlap_sends: bool = False
    """Whether sends between pipeline stages run beside compute."""
    rendezvous: bool = False
    """Whether the bytes of a pipeline's message move only once both sides have asked for it, and each stage posts and
    awaits its messages as PyTorch's schedules do (:mod:`traincast.strategy.exchange.rendezvous`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTable:
    """How a layer with experts runs: how tokens reach their experts, which kernels multiply them, what overlaps."""

    dispatcher: Literal["all_to_all", "fused"] = "all_to_all"
    """Sends a token once per expert (``all_to_all``), or once per rank and node that has any of its experts, and
    reorders tokens on the way (``fused``)."""
    dispatch_dtype: Literal["", "fp8"] = ""
    """The dtype in which forward sends tokens; empty: that of activations, as for results and gradients."""
    grouped: Literal["", "looped", "fused"] = ""
    """Kernels of the experts' products: one per expert (``looped``), or one for all that also does what lies between
    the products (``fused``). Empty means kernels of inference."""
    routing_launches: Amount = 0.0
    """Kernel launches for which the device waits in each layer with experts while the host reads how many tokens each
    expert got. There is no such wait where shapes are fixed by a capacity or a recorded graph."""
    overlap: Amount = 0.0
    """The share of the experts' products that their traffic can overlap with."""
    overlap_batches: Share = 0.0
    """The share of another microbatch's compute that the traffic between nodes can overlap with instead, where
    microbatches are interleaved."""
    overlap_batches_near: bool = False
    """Whether that also holds for traffic within a domain of fast links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """What a rank holds beside the tensors of the model, and how the framework reports its memory."""

    lean_kernels: bool = False
    """Whether attention and routing keep only the tensors that their backward reads."""
    gradient_copies: Literal["none", "shapes", "all"] = "none"
    """Gradients in the narrow dtype that exist beside their sums in a wider one: ``none`` (each is freed after its own
    product), one of each shape (``shapes``), or ``all`` of a stage."""
    frees_gradients: bool = False
    """Whether gradients exist only once backward has made them, unless several microbatches are accumulated."""
    updates_in_backward: bool = False
    """Whether a weight is updated, and its gradient freed, as soon as backward has made the gradient."""
    flat_gradients: bool = False
    """Whether the update copies gradients as DeepSpeed's ZeRO does, into blocks that activations cannot use
    (:mod:`traincast.strategy.memory.update`)."""
    update_share: Amount = 0.0
    """Bytes that the update needs for a moment, as a share of the optimizer's states."""
    kept_inputs: Amount = 1.0
    """Copies of its input that a recomputed block keeps."""
    logits_copies: Amount = 1.0
    """Copies of the logits in fp32 that the loss holds in addition to those that it keeps for backward."""
    loss_chunks: Whole = 0
    """Pieces in which the projection to the vocabulary and the loss run, forward and backward, so that no logits are
    kept unless ``half_logits`` says so; 0: they run whole."""
    half_logits: bool = False
    """Whether the loss keeps the logits, or their gradient, in the precision of activations, instead of the log-softmax
    in fp32."""
    held_collectives: Amount = 0.0
    """Tensors of tensor-parallel collectives that cannot be reused while the host runs ahead of the device."""
    workspace_bytes: Amount = 0.1e9
    """Bytes that libraries hold."""
    context_bytes: Amount = 0.6e9
    """Bytes that the driver holds."""
    buffer_bytes: Amount = 0.15e9
    """Bytes that each communicator holds."""
    allocator_overhead: Amount = 0.05
    """Bytes lost to fragmentation, as a share of the bytes of all tensors."""
    reports: Literal["first", "fullest"] = "fullest"
    """The rank whose memory the framework logs."""
    counter: Literal["allocated", "reserved", "device"] = "allocated"
    """What the log counts: allocated memory, reserved memory, or all memory that the device has in use."""
    low: Annotated[float, Meta(ge=0.01, le=1.0)] = 0.6
    """In 90 % of runs, the memory of a rank beyond weights, gradients and optimizer states is between ``low`` and
    ``high`` times its forecast (:mod:`traincast.strategy.memory.fits`). The defaults are for frameworks without
    measurements."""
    high: Annotated[float, Meta(ge=1.0, le=100.0)] = 2.0
    """See ``low``."""
    states_doubt: Share = 0.0
    """If memory beyond the states is x times its forecast, the states are x to this power times theirs; 0: they are
    exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultTable:
    """How a model is divided, and what a strategy gets where it does not say otherwise."""

    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage of measured rows that do not state one."""
    recompute: RecomputationName = "none"
    """Recomputation, where Traincast chooses the strategy or a measured row does not state it."""
    sequence_parallel: bool = False
    """Whether tensor groups of such strategies also split the sequence."""
    servers: Whole = 0
    """Number of parameter servers, where Traincast chooses the strategy."""
    prefetch_blocks: Whole = 1
    """Blocks whose sharded weights are gathered in advance."""
    gradient_dtype: GradientDType = ""
    """The dtype of gradients if there are master weights; empty: that of the precision."""
    adapter_dtype: Literal["fp32", "model"] = "fp32"
    """How adapters are stored if nothing says otherwise: in fp32, as the PEFT library does beside 16-bit weights, or in
    the precision of the model."""
    split_vocabulary: bool = True
    """Whether tensor groups split embedding, logits and loss by vocabulary."""
    stage_cut: Literal["layers", "weights"] = "layers"
    """Whether pipelines are cut by counting layers or by their weights."""
    fills_pipeline: bool = False
    """Whether the framework refuses fewer microbatches than the warm-up of the pipeline needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What a framework does with mixtures of experts from release ``since`` on (:mod:`traincast.strategy.releases`)."""

    since: Release = ""
    """The first release that has the habit; empty: all have it."""
    products: tuple[Text, ...] = ()
    """Dtypes of products in whose runs it applies; empty: in all."""
    architectures: tuple[Text, ...] = ()
    """Architectures of devices on which it applies; empty: on all."""
    joined: Whole = 0
    """It applies on machines that join at least this many devices by their fast links."""
    hybrids: bool = True
    """Whether it also applies to models with state-space layers."""
    changes: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    """The fields that it changes: for each table of the runtime its name, and names and values of fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the habit as a runtime file spells it."""
        conditions = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "changes"}
        return conditions | {table: dict(values) for table, values in self.changes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a framework carries out a strategy."""

    name: str
    description: str
    frameworks: tuple[str, ...] = ()
    """Spellings of the framework in tables of measurements."""
    release: Release = ""
    """The framework's own release number; empty for the newest."""
    launches: LaunchTable = field(default_factory=LaunchTable)
    kernels: KernelTable = field(default_factory=KernelTable)
    exchange: ExchangeTable = field(default_factory=ExchangeTable)
    experts: ExpertTable = field(default_factory=ExpertTable)
    memory: MemoryTable = field(default_factory=MemoryTable)
    defaults: DefaultTable = field(default_factory=DefaultTable)
    habits: tuple[Habit, ...] = ()
    """What changes with the release, in the order of releases."""

    def patched(self, **tables: Mapping[str, Any]) -> Runtime:
        """Return the runtime with some fields of its tables changed: ``patched(memory={"counter": "device"})``."""
        return replace(self, **{table: replace(getattr(self, table), **said) for table, said in tables.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the runtime as a file spells it."""
        return asdict(self) | {"habits": [habit.to_dict() for habit in self.habits]}


TABLES: Final = {
    "launches": LaunchTable,
    "kernels": KernelTable,
    "exchange": ExchangeTable,
    "experts": ExpertTable,
    "memory": MemoryTable,
    "defaults": DefaultTable,
}
"""The tables of a runtime, by their names in its file."""

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
    _refuse_flat(data, where)
    kind = table_of(Runtime, without=("habits",), extends=Text, habits=tuple[dict[str, Any], ...])
    values = read_table(data, kind, where)
    said = {table: values.pop(table) for table in TABLES if table in values}
    if "habits" in values:
        values["habits"] = tuple(_habit(habit, f"{where} habits[{n}]") for n, habit in enumerate(values["habits"]))
    parent = values.pop("extends", None)
    base = _bundled(parent) if parent is not None else Runtime(name=name, description="")
    return replace(base.patched(**said), **{"name": name, **values})


def _habit(data: dict[str, Any], where: str) -> Habit:
    _refuse_flat(data, where)
    tables = {table: table_of(kind) for table, kind in TABLES.items()}
    said = read_table(data, table_of(Habit, without=("changes",), **tables), where)
    changes = tuple((table, tuple(said.pop(table).items())) for table in TABLES if table in said)
    return Habit(**said, changes=changes)


def _refuse_flat(data: Mapping[str, Any], where: str) -> None:
    """Refuses a field of a table that stands outside it, and says where it belongs.

    ``operator_launches``, ``memory_low`` and ``overlap_experts`` are taken to mean ``operator``, ``low`` and
    ``overlap`` of the tables that they name.
    """
    for table, kind in TABLES.items():
        for known in fields(kind):
            for key in (k for k in (known.name, f"{known.name}_{table}", f"{table}_{known.name}") if k in data):
                raise FileFormatError(f"{where} {key} stands in [{table}] now: [{table}] {known.name} = …")
    if isinstance(data.get("kernels"), str):
        raise FileFormatError(f"{where} kernels is a table now: [kernels] measured_with = …")


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
