"""Which runtime stands for the program that ran a row: by its framework, its year, its container and its device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.cluster import Cluster, Device
from traincast.cluster.architecture import load_architecture
from traincast.errors import UnknownNameError
from traincast.graph import OperatorGraph, OpKind
from traincast.measured.dialect import Pattern, Said, vocabulary
from traincast.measured.run import unstated
from traincast.strategy import Runtime, find_runtime, load_precision, load_runtime
from traincast.tables import Row, figure, text

_SHARDED: Final = 3
"""The stage of ZeRO that shards parameters."""
_HALF: Final = 2
"""Bytes of numbers with 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How ``runtimes`` ran before the year ``before``: as another ``runtime``, or with changes.

    ``attention`` names the kernels of attention, except in models whose name has a word of ``attention_of``. The host
    launches operators as in the runtime ``host_of``. A framework named ``wrapped`` launches ``wrapped_launches``
    operators more for each parameter, and lacks the fusion ``wrapped_without``.
    """

    runtimes: tuple[str, ...]
    before: int
    runtime: str = ""
    attention: str = ""
    attention_of: dict[str, str] = field(default_factory=dict)
    host_of: str = ""
    wrapped: Said | None = None
    wrapped_launches: float = 0.0
    wrapped_without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedSdk:
    """A maker's SDK that ran as ``runtime`` up to the ``last`` release, whose number ``release`` finds in a text."""

    release: Pattern
    last: int
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ByContainer:
    """A program whose containers tell its releases apart, by year and month.

    Before ``since`` it ran as ``older``. A row that states no container ran the older one if its model has attention
    and is of no family that is ``in_library``.
    """

    name: str
    since: float
    older: str
    in_library: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraphs:
    """The program ``name``, also ``spelled`` otherwise, whose graphs a ``compiler`` may compile.

    It does if a row has ``said`` so or trains by ``recipes`` that do, and always on an ``architecture``.
    """

    name: str
    spelled: Pattern
    compiler: str
    said: Said
    recipes: Said
    architecture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frameworks:
    """What programs did where a row does not say; comments in ``frameworks.toml`` explain each entry."""

    generations: tuple[Generation, ...]
    unfused_sdks: dict[str, UnfusedSdk]
    compiles: dict[str, str]
    not_compiled: Said
    eager: Said
    says_compiled: Said
    interleaves: tuple[str, ...]
    async_tensor: dict[str, float]
    asynchronous: Said
    keeps_gathered: tuple[str, ...]
    shards_itself: tuple[str, ...]
    sharded_as: str
    spread_as: str
    otherwise: str
    by_container: dict[str, ByContainer]
    compiled: CompiledGraphs
    layouts: dict[str, Said]
    recorded: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """What texts of a row say of its strategy; comments in ``spellings.toml`` explain each entry."""

    cpu_offload: Said
    dropped_tokens: Said
    sharded: Said
    fsdp: Said
    across_slices: Said
    zero: Said
    shards_states: Said
    tensor_groups: Said
    mesh: Said
    recomputes: Said
    fine_tunes: Said
    split_tables: Said


def runtime_of(row: Row, *, usual: str = "", device: Device | None = None, assumed: list[str] | None = None) -> Runtime:
    """Return the runtime of a row's framework.

    On an architecture whose maker has its own compiler, the runtime is that of the ``device``. An unknown framework
    becomes FSDP if parameters are sharded, otherwise ``usual``, which `predict` takes for this model. PyTorch that
    shards parameters does it with its own FSDP.
    """
    said = list[str]() if assumed is None else assumed
    framework, habits = text(row, "framework"), vocabulary(Frameworks)
    if device is not None and load_architecture(device.architecture).runtime:
        return _of_maker(framework, device)
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    zero = figure(row, "zero")
    sharded = zero == _SHARDED or (zero is None and vocabulary(Strategies).sharded(row))
    try:
        runtime = find_runtime(framework)
    except UnknownNameError:
        name = usual or (habits.spread_as if spread else habits.otherwise)
        return _stand_in(framework, habits.sharded_as if sharded and not spread else name, said)
    year = re.match(r"(\d{4})", text(row, "date"))
    if year is not None:
        runtime = _of_year(int(year[1]), row, runtime)
    if runtime.name in habits.shards_itself and sharded:
        said.append(f"framework {framework!r} used with sharded parameters: {habits.sharded_as}")
        runtime = load_runtime(habits.sharded_as)
    if runtime.name in habits.async_tensor and habits.asynchronous(row):
        runtime = runtime.patched(exchange={"overlap_tensor": habits.async_tensor[runtime.name]})
    return _compiled(row, runtime, said) if runtime.name in habits.compiles else runtime


def _of_maker(framework: str, device: Device) -> Runtime:
    """Return the runtime that stands for all frameworks on a device; the release of an SDK may tell old from new."""
    name = load_architecture(device.architecture).runtime
    old = vocabulary(Frameworks).unfused_sdks.get(name)
    release = old.release.search(framework) if old else None
    return load_runtime(old.runtime if old and release and int(release[1]) <= old.last else name)


def _of_year(year: int, row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` as it was in a year: its first generation that ended later, or as it is today."""
    known = vocabulary(Frameworks).generations
    found = next((old for old in known if runtime.name in old.runtimes and year < old.before), None)
    if found is None:
        return runtime
    if found.runtime:
        return load_runtime(found.runtime)
    name = text(row, "model").lower()
    attention = next((kernels for word, kernels in found.attention_of.items() if word in name), found.attention)
    runtime = runtime.patched(kernels={"attention": attention})
    if not found.host_of:
        return runtime
    host = load_runtime(found.host_of).launches
    wrapped = found.wrapped is not None and found.wrapped(row)
    fusions = (fusion for fusion in runtime.kernels.fusions if not (wrapped and fusion == found.wrapped_without))
    return runtime.patched(
        kernels={"fusions": tuple(fusions)},
        launches={
            "operator": host.operator,
            "backward": host.backward,
            "collective": host.collective,
            "block": host.block,
            "parameter": found.wrapped_launches * host.operator if wrapped else 0.0,
        },
    )


def _compiled(row: Row, runtime: Runtime, assumed: list[str]) -> Runtime:
    """Return ``runtime`` with compiled blocks, or its eager form if the row ran eagerly."""
    habits = vocabulary(Frameworks)
    if habits.not_compiled(row) or habits.eager(row):
        return replace(load_runtime(habits.compiles[runtime.name]), exchange=runtime.exchange)
    if not text(row, "compile") and not habits.says_compiled(row):
        assumed.append(unstated("compilation", "blocks compiled"))
    return runtime


def contained_runtime(
    row: Row, graph: OperatorGraph, place: Cluster, assumed: list[str], *, precision: str = ""
) -> Runtime:
    """Return the runtime of a framework whose release is told by its container, and whose graphs may be compiled.

    In a ``precision`` with 16 bits, the layout of images matters, and what is taken for it is said.
    """
    habits = vocabulary(Frameworks)
    compiles = habits.compiled
    framework = compiles.spelled.sub(compiles.name, text(row, "framework"))
    found, container = habits.by_container.get(framework.lower()), figure(row, "container")
    if found is not None:
        own = graph.name.partition("-")[0] not in found.in_library
        attends = own and any(op.kind is OpKind.ATTENTION for op, _ in graph)
        older = container < found.since if container is not None else attends
        if container is None:
            assumed.append(unstated(f"release of {found.name}", 1 if older else 2))
        framework = found.older if older else framework
    if framework.lower().startswith(compiles.name.lower()):
        stated = text(row, compiles.said.columns)
        recipe = compiles.said(row) or (not stated and compiles.recipes(row))
        compiled = recipe or place.device.architecture == compiles.architecture
        framework = f"{framework} {compiles.compiler}" if compiled else framework
        if not stated:
            assumed.append(unstated(compiles.compiler, "on" if compiled else "off"))
    try:
        runtime = find_runtime(framework)
    except UnknownNameError:
        runtime = _stand_in(framework, habits.otherwise, assumed)
    if habits.recorded(row):
        runtime = runtime.patched(launches={"cuda_graphs": True, "step": 0.0})
    narrow = bool(precision) and load_precision(precision).products.nbytes == _HALF
    return _laid_out(row, runtime, assumed) if narrow and any(op.kind is OpKind.CONV for op, _ in graph) else runtime


def _laid_out(row: Row, runtime: Runtime, assumed: list[str]) -> Runtime:
    """Return ``runtime`` with the layout of images that a row states."""
    stated = next((layout for layout, said in vocabulary(Frameworks).layouts.items() if said(row)), None)
    if stated is None and runtime.kernels.layout == "channels_first":
        assumed.append(unstated("layout of images", "channels first, as by default"))
    return runtime if stated is None else runtime.patched(kernels={"layout": stated})


def _stand_in(framework: str, name: str, assumed: list[str]) -> Runtime:
    """Return the runtime that stands for a framework that is not known or not stated."""
    assumed.append(f"framework {framework!r} not known: {name}" if framework else unstated("framework", name))
    return load_runtime(name)
