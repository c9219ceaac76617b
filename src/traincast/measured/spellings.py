"""How tables of measured runs spell precisions, recomputation, schedules, optimizers and frameworks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture
from traincast.errors import UnknownNameError
from traincast.measured.dialect import Meanings, Pattern, meaning, vocabulary
from traincast.measured.run import affirms, unstated
from traincast.strategy import Runtime, find_runtime, load_precision, load_runtime
from traincast.tables import Row, RowError, figure, text

_BLANKS: Final = re.compile(r"[^a-z0-9]+")
_SHARDED: Final = 3
"""The stage of ZeRO that shards parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """How rows spell what runs; comments in ``spellings.toml`` explain each entry."""

    precisions: Meanings[str]
    automatic: Pattern
    integers: Pattern
    no_tf32: Pattern
    layouts: Meanings[str]
    mixed: dict[str, str]
    recompute: dict[str, tuple[str, ...]]
    keeps_some: Pattern
    schedules: Meanings[str]
    adam: tuple[str, ...]
    no_update: Pattern
    masked_rates: Pattern
    failed: Pattern
    cpu_offload: Pattern
    dropped_tokens: Pattern
    release: Pattern
    fsdp: Pattern
    across_slices: Pattern
    zero: Pattern
    tensor_groups: Pattern
    mesh: Pattern


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
    wrapped: Pattern | None = None
    wrapped_launches: float = 0.0
    wrapped_without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedSdk:
    """The ``last`` release 2.N of a maker's SDK that runs as ``runtime``."""

    last: int
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frameworks:
    """What programs did where a row does not say; comments in ``frameworks.toml`` explain each entry."""

    generations: tuple[Generation, ...]
    unfused_sdks: dict[str, UnfusedSdk]
    compiles: tuple[str, ...]
    eager: Pattern
    eager_as: str
    keeps_gathered: tuple[str, ...]
    shards_itself: tuple[str, ...]
    sharded_as: str
    spread_as: str
    otherwise: str
    further_tokens: tuple[str, ...]
    adapter_dropout: tuple[str, ...]
    pytorch_2: float
    pytorch_1_as: str
    in_library: tuple[str, ...]
    tensorflow: Pattern
    compiled_architecture: str
    compiled_with_amp: str
    shards_states: str


def precision_name(written: str, *, usual: str = "bf16", assumed: list[str] | None = None) -> str:
    """Return the precision that a table spells ``amp_bf16``, ``MXFP8``, ``float8 rowwise``, ``bf16-mixed`` or the like.

    If nothing is written, ``usual`` is returned and ``assumed`` gets a sentence. An unknown spelling is refused.
    """
    said = list[str]() if assumed is None else assumed
    if not written:
        said.append(unstated("precision", usual))
        return usual
    plain, words = written.lower(), vocabulary(Spellings)
    joined = _BLANKS.sub("", plain)
    automatic = words.automatic.search(plain) is not None
    name = meaning(words.precisions, joined)
    if name is None and automatic:
        name = "fp16"
        said.append(f"precision {written!r} names no 16-bit format: fp16")
    if name is None and words.integers.search(joined):
        name = "fp8"
        said.append(f"precision {written!r} is not modelled: fp8, which has as many bits")
    if name is None:
        raise RowError(f"precision {written[:40]!r} is not known: expected one such as fp32, tf32, bf16, amp or fp8")
    if "?" in plain or "mxfp4" in joined:
        said.append(f"precision {written!r} read as: {name}")
    return words.mixed.get(name, name) if automatic else name


def supported(name: str, device: Device, assumed: list[str]) -> str:
    """Return the precision that ``device`` runs ``name`` in: fp32 if it has no TF32, else ``name`` itself.

    If the device lacks the format of products, these run at the rate of a wider one, and ``assumed`` names it.
    """
    dtype = load_precision(name).linear.value
    if device.supports(dtype):
        return name
    assumed.append(device.lacks(dtype))
    return "fp32" if name == "tf32" else name


def recompute_name(written: str) -> str | None:
    """Return the recomputation that a table spells ``remat_policy=full``, ``yes`` or the like; ``None`` if unknown."""
    plain = re.sub(r"^.*[=:]", "", written.lower()).strip()
    known = vocabulary(Spellings).recompute.items()
    return "selective" if plain.startswith("selective") else next((name for name, said in known if plain in said), None)


def recompute_of(row: Row, runtime: Runtime, assumed: list[str]) -> str:
    """Return the recomputation that a row states; if it states none that is known, the default of ``runtime``."""
    written = text(row, "recompute")
    found = recompute_name(written)
    if found is None and vocabulary(Spellings).keeps_some.search(written.lower()):
        assumed.append(f"recompute {written!r} keeps some projections: full")
        return "full"
    if found is None:
        assumed.append(
            f"recompute {written!r} not known: {runtime.defaults.recompute}"
            if written
            else unstated("recompute", runtime.defaults.recompute)
        )
    return found or runtime.defaults.recompute


def schedule_of(row: Row) -> str:
    """Return the pipeline schedule that a row names in ``schedule`` or in its notes; "" if it names none."""
    written = text(row, "schedule")
    if ":" in written:
        return written  # Python code: allowed or refused by the caller
    said = _BLANKS.sub("", (written or text(row, "notes")).lower())
    found = meaning(vocabulary(Spellings).schedules, said) or ""
    if written and not found:
        raise RowError(f"schedule {written[:40]!r} is not known: expected one such as 1f1b, interleaved or gpipe")
    return found


def updates_weights(row: Row) -> bool:
    """Return whether the steps of a row update the weights: its notes may say that they have no optimizer."""
    return vocabulary(Spellings).no_update.search(text(row, "notes")) is None


def optimizer_of(row: Row, forecast: str, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` if the optimizer that is ``forecast`` is not the one that a row states."""
    written = text(row, "optimizer")
    plain = _BLANKS.sub("", written.lower())
    words = vocabulary(Spellings).adam
    adam = any(word in forecast for word in words)
    if not written:
        assumed.append(unstated("optimizer", forecast))
    elif "8bit" in plain or adam != any(word in plain for word in words) or (not adam and "sgd" not in plain):
        assumed.append(f"optimizer {written!r} is not modelled: {forecast}")


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
    sharded = zero == _SHARDED or (zero is None and affirms(text(row, "notes"), "fsdp"))
    try:
        runtime = find_runtime(framework)
    except UnknownNameError:
        name = usual or (habits.spread_as if spread else habits.otherwise)
        name = habits.sharded_as if sharded and not spread else name
        said.append(f"framework {framework!r} not known: {name}" if framework else unstated("framework", name))
        return load_runtime(name)
    year = re.match(r"(\d{4})", text(row, "date"))
    if year is not None:
        runtime = _of_year(int(year[1]), row, runtime)
    if runtime.name in habits.shards_itself and sharded:
        said.append(f"framework {framework!r} used with sharded parameters: {habits.sharded_as}")
        runtime = load_runtime(habits.sharded_as)
    return _compiled(row, runtime, said) if runtime.name in habits.compiles else runtime


def _of_maker(framework: str, device: Device) -> Runtime:
    """Return the runtime that stands for all frameworks on a device; the release of an SDK may tell old from new."""
    name = load_architecture(device.architecture).runtime
    release, old = re.search(r"\b2\.(\d+)", framework), vocabulary(Frameworks).unfused_sdks.get(name)
    return load_runtime(old.runtime if old and release is not None and int(release[1]) <= old.last else name)


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
    wrapped = found.wrapped is not None and found.wrapped.search(text(row, "framework").lower()) is not None
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
    """Return ``runtime`` with compiled blocks, or with operators launched one by one if the row ran eagerly."""
    habits = vocabulary(Frameworks)
    said = " ".join(text(row, key) for key in ("framework", "notes", "precision")).lower()
    written = text(row, "compile").lower()
    if written in ("false", "no", "off", "0", "0.0") or habits.eager.search(said):
        eager = load_runtime(habits.eager_as)
        return runtime.patched(
            kernels={"fusions": eager.kernels.fusions},
            launches={"operator": eager.launches.operator, "backward": eager.launches.backward},
        )
    if not written and "compile" not in said:
        assumed.append(unstated("compilation", "blocks compiled"))
    return runtime
