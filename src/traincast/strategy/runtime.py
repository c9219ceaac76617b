"""The habits of a training framework: what it fuses, overlaps, buckets and holds in memory. One TOML each."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from traincast.errors import FileFormatError, RequestError, UnknownNameError

Fusion: TypeAlias = Literal["norm", "elementwise", "loss", "gradients"]
Attention: TypeAlias = Literal["flash", "flash-2", "unfused", "eager"]
GradientCopies: TypeAlias = Literal["none", "shapes", "all"]
Reports: TypeAlias = Literal["first", "fullest"]
Counter: TypeAlias = Literal["allocated", "reserved"]
StageCut: TypeAlias = Literal["layers", "weights"]


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
    operator_launches: float = 2.0
    backward_launches: float = 1.2
    collective_launches: float = 6.0
    wait_launches: float = 0.0
    block_launches: float = 0.0
    microbatch_launches: float = 0.0
    sync_passes: bool = False
    bucket_bytes: float = 25e6
    overlap_gradients: bool = True
    overlap_sends: bool = False
    send_launches: float = 0.0
    overlap_tensor: float = 0.0
    overlap_experts: float = 0.0
    cuda_graphs: bool = False
    gradient_dtype: str = ""
    reduce_dtype: str = ""
    servers: int = 0
    recompute: Literal["none", "selective", "full"] = "none"
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    stage_cut: StageCut = "layers"
    fills_pipeline: bool = False
    prefetch_blocks: int = 1
    lean_kernels: bool = False
    gradient_copies: GradientCopies = "none"
    logits_copies: float = 1.0
    tensor_buffers: float = 4.0
    held_collectives: float = 0.0
    workspace_bytes: float = 0.1e9
    reports: Reports = "fullest"
    counter: Counter = "allocated"
    context_bytes: float = 0.6e9
    allocator_overhead: float = 0.05
    buffer_bytes: float = 0.15e9
    memory_low: float = 0.6
    memory_high: float = 2.0


_DIRECTORY: Final = "runtimes"


@cache
def runtime_names() -> tuple[str, ...]:
    """Names of the bundled runtimes."""
    entries = resources.files("traincast.strategy").joinpath(_DIRECTORY).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def load_runtime(spec: str) -> Runtime:
    """A bundled runtime by name, or a user's own from a ``.toml`` file (which may ``extends`` a bundled one)."""
    if spec.endswith(".toml"):
        return _user_runtime(Path(spec))
    return _bundled(spec)


@cache
def _bundled(name: str) -> Runtime:
    if name not in runtime_names():
        raise UnknownNameError("runtime", name, runtime_names(), hint="or give a .toml file")
    text = resources.files("traincast.strategy").joinpath(_DIRECTORY, f"{name}.toml").read_text(encoding="utf-8")
    return _read(tomllib.loads(text), name=name, where=name)


def _user_runtime(path: Path) -> Runtime:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"cannot read runtime file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"runtime file {path} is not valid TOML: {error}") from error
    return _read(data, name=path.stem, where=str(path))


def _read(data: dict[str, Any], *, name: str, where: str) -> Runtime:
    known = {f.name: f for f in fields(Runtime)}
    parent = data.pop("extends", None)
    for key in data:
        if key not in known:
            raise UnknownNameError(f"setting in runtime {where}", key, known)
    base = _bundled(str(parent)) if parent is not None else Runtime(name=name, description="")
    values = {key: _checked(key, value, getattr(base, key), where) for key, value in data.items()}
    made = replace(base, **{"name": name, **values})
    if not 0.01 <= made.memory_low <= 1.0 <= made.memory_high <= 100.0:
        raise RequestError(
            f"memory_low and memory_high in runtime {where} are {made.memory_low:g} and {made.memory_high:g}: real "
            "memory over its forecast, expected from 0.01 to 1 and from 1 to 100"
        )
    return made


_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "attention": get_args(Attention),
    "recompute": ("none", "selective", "full"),
    "zero": (0, 1, 2, 3),
    "gradient_dtype": ("", "fp32", "bf16", "fp16"),
    "reduce_dtype": ("", "fp32", "bf16", "fp16"),
    "fusions": get_args(Fusion),
    "gradient_copies": get_args(GradientCopies),
    "reports": get_args(Reports),
    "counter": get_args(Counter),
    "stage_cut": get_args(StageCut),
}


def _checked(key: str, value: Any, default: object, where: str) -> Any:
    """One value of a runtime file, of the type its default has and within sane bounds."""
    expected = type(default)
    if expected is tuple:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise RequestError(f"{key} in runtime {where} is {value!r}: expected a list of strings")
        if key == "fusions" and not set(value) <= set(_CHOICES[key]):
            raise RequestError(f"fusions in runtime {where} are {value}: known are {list(_CHOICES[key])}")
        return tuple(value)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not expected:
        raise RequestError(f"{key} in runtime {where} is {value!r}: expected {expected.__name__}")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise RequestError(f"{key} in runtime {where} is {value!r}: known are {list(_CHOICES[key])}")
    if isinstance(value, float | int) and not (math.isfinite(value) and 0 <= value <= 1e15):
        raise RequestError(f"{key} in runtime {where} is {value!r}: expected a number from 0 to 1e15")
    return value


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
