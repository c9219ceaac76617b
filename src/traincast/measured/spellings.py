"""How tables of measured runs spell precisions, recomputation, schedules, optimizers and frameworks."""

from __future__ import annotations

import re
from typing import Final

from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture
from traincast.errors import UnknownNameError
from traincast.measured.run import affirms, unstated
from traincast.strategy import Runtime, find_runtime, load_precision, load_runtime
from traincast.tables import Row, RowError, figure, text

_NARROW: Final = (
    (r"nvfp4|mxfp4|(?:fp|float)4|e2m1", "nvfp4"),
    (r"(?:fp|float)8|mxfp8|e4m3|e5m2", "fp8"),
)
"""Formats of matrix products, with any scaling (delayed, rowwise, per block); the rest of the step is in bf16."""
_WIDE: Final = (
    (r"(?<!no)(?<!not)(?<!without)(?:tf32|tensorfloat)(?!off|disabled|false|0)", "tf32"),
    (r"bf16|bfloat16", "bf16"),
    (r"(?:fp|float|^)16|half", "fp16"),
    (r"(?:fp|float|^)32|single|^float$", "fp32"),
)
_AUTOMATIC: Final = r"amp|mixed|autocast"
_AMP: Final = {"bf16": "amp-bf16", "fp16": "amp"}
_BLANKS: Final = r"[^a-z0-9]+"

_RECOMPUTE: Final[dict[str, str]] = {
    **dict.fromkeys(("none", "no", "false", "off", "0", "0.0", "minimal_with_context"), "none"),
    **dict.fromkeys(("full", "yes", "true", "on", "1", "1.0", "block", "uniform", "all"), "full"),
    **dict.fromkeys(("partial", "sac", "minimal"), "selective"),
}
_KEEPS_SOME: Final = re.compile(r"custom|qkv|out_?proj|offload")
"""Policies of JAX programs that keep or offload a few projections and compute the rest of a layer again."""
_SCHEDULES: Final = (
    (r"interleavedzerobubble|zerobubble|zb1p|zbh1", "zb-h1"),
    (r"zbh2", "zb-h2"),
    (r"zbv", "zb-v"),
    (r"dualpipe", "dualpipe"),
    (r"loopedbfs|breadthfirst", "breadth-first"),
    (r"gpipe|afab|allforward", "gpipe"),
    (r"interleaved", "interleaved"),
    (r"1f1b|onefoneb", "1f1b"),
)
"""The first pattern that matches counts: ``Interleaved1F1B`` matches two."""
_LAST_UNFUSED_NEURON: Final = 15
"""The last release 2.N of Neuron's SDK whose attention writes its scores to memory."""
_FLASH_SINCE: Final = 2023
"""The year from which Megatron-LM's published runs use fused attention."""
_PADDED_SINCE: Final = 2024
"""The year from which Megatron fuses attention with padded sequences, as BERT has them."""
_HOPPER_SINCE: Final = 2025
"""The year from which published runs of Megatron use attention kernels made for Hopper (FlashAttention 3, cuDNN 9)."""
_SEQUENCE_PARALLEL_SINCE: Final = 2022
"""The year of Megatron-LM's sequence parallelism, sharded optimizer and overlapped exchanges."""
_WRAPPED: Final = 2.0
"""Operators of the host per parameter in NeMo to 2023: its optimizer wrapper (``megatron_amp_O2``) adds gradients to an
fp32 copy in one hook each, and copies updated weights back one by one."""
_SHARDED: Final = 3
"""The stage of ZeRO that shards parameters."""
_ADAM: Final = ("adam", "lamb")
_NO_UPDATE: Final = re.compile(
    r"\b(?:no|without|w/o|excluding) (?:the )?optimi[sz]er\b(?! (?:stat|shard|offload))", re.IGNORECASE
)
"""``no optimizer step``, but not ``no optimizer offload``."""


def precision_name(written: str, *, usual: str = "bf16", assumed: list[str] | None = None) -> str:
    """Return the precision that a table spells ``amp_bf16``, ``MXFP8``, ``float8 rowwise``, ``bf16-mixed`` or the like.

    If nothing is written, ``usual`` is returned and ``assumed`` gets a sentence. An unknown spelling is refused.
    """
    said = list[str]() if assumed is None else assumed
    if not written:
        said.append(unstated("precision", usual))
        return usual
    plain = written.lower()
    joined = re.sub(_BLANKS, "", plain)
    automatic = re.search(_AUTOMATIC, plain) is not None
    name = next((name for pattern, name in (*_NARROW, *_WIDE) if re.search(pattern, joined)), None)
    if name is None and automatic:
        name = "fp16"
        said.append(f"precision {written!r} names no 16-bit format: fp16")
    if name is None and re.search(r"int8|w8a8|aqt", joined):
        name = "fp8"
        said.append(f"precision {written!r} is not modelled: fp8, which has as many bits")
    if name is None:
        raise RowError(f"precision {written[:40]!r} is not known: expected one such as fp32, tf32, bf16, amp or fp8")
    if "?" in plain or "mxfp4" in joined:
        said.append(f"precision {written!r} read as: {name}")
    return _AMP.get(name, name) if automatic else name


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
    return "selective" if plain.startswith("selective") else _RECOMPUTE.get(plain)


def recompute_of(row: Row, runtime: Runtime, assumed: list[str]) -> str:
    """Return the recomputation that a row states; if it states none that is known, the default of ``runtime``."""
    written = text(row, "recompute")
    found = recompute_name(written)
    if found is None and _KEEPS_SOME.search(written.lower()):
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
    said = re.sub(_BLANKS, "", (written or text(row, "notes")).lower())
    found = next((name for pattern, name in _SCHEDULES if re.search(pattern, said)), "")
    if written and not found:
        raise RowError(f"schedule {written[:40]!r} is not known: expected one such as 1f1b, interleaved or gpipe")
    return found


def updates_weights(row: Row) -> bool:
    """Return whether the steps of a row update the weights: its notes may say that they have no optimizer."""
    return _NO_UPDATE.search(text(row, "notes")) is None


def optimizer_of(row: Row, forecast: str, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` if the optimizer that is ``forecast`` is not the one that a row states."""
    written = text(row, "optimizer")
    plain = re.sub(_BLANKS, "", written.lower())
    adam = any(word in forecast for word in _ADAM)
    if not written:
        assumed.append(unstated("optimizer", forecast))
    elif "8bit" in plain or adam != any(word in plain for word in _ADAM) or (not adam and "sgd" not in plain):
        assumed.append(f"optimizer {written!r} is not modelled: {forecast}")


def runtime_of(row: Row, *, usual: str = "", device: Device | None = None, assumed: list[str] | None = None) -> Runtime:
    """Return the runtime of a row's framework.

    On an architecture whose maker has its own compiler, the runtime is that of the ``device``. An unknown framework
    becomes FSDP if parameters are sharded, otherwise ``usual``, which `predict` takes for this model. PyTorch that
    shards parameters does it with its own FSDP.
    """
    said = list[str]() if assumed is None else assumed
    framework = text(row, "framework")
    if device is not None and load_architecture(device.architecture).runtime:
        return _of_maker(framework, device)
    spread = any((figure(row, axis) or 1) > 1 for axis in ("tp", "pp", "cp"))
    zero = figure(row, "zero")
    sharded = zero == _SHARDED or (zero is None and affirms(text(row, "notes"), "fsdp"))
    try:
        runtime = find_runtime(framework)
    except UnknownNameError:
        name = "fsdp" if sharded and not spread else usual or ("megatron" if spread else "pytorch")
        said.append(f"framework {framework!r} not known: {name}" if framework else unstated("framework", name))
        return load_runtime(name)
    year = re.match(r"(\d{4})", text(row, "date"))
    if runtime.name == "megatron" and year is not None and int(year[1]) < _FLASH_SINCE:
        return load_runtime("megatron-1" if int(year[1]) < _SEQUENCE_PARALLEL_SINCE else "megatron-2")
    if runtime.name in ("megatron", "megatron-bridge") and year is not None:
        return _of_year(int(year[1]), row, runtime)
    if runtime.name in ("pytorch", "pytorch-1", "ddp") and sharded:
        said.append(f"framework {framework!r} used with sharded parameters: fsdp")
        runtime = load_runtime("fsdp")
    return _compiled(row, runtime, said) if runtime.name == "torchtitan" else runtime


def _of_maker(framework: str, device: Device) -> Runtime:
    """Return the runtime that stands for all frameworks on a device; the release of Neuron's SDK tells old from new."""
    name = load_architecture(device.architecture).runtime
    release = re.search(r"\b2\.(\d+)", framework)
    if name == "neuronx" and release is not None and int(release[1]) <= _LAST_UNFUSED_NEURON:
        name = "neuronx-1"
    return load_runtime(name)


def _of_year(year: int, row: Row, runtime: Runtime) -> Runtime:
    """Return ``runtime`` with the attention kernels, and to 2023 the host's work, that Megatron had in a year."""
    if year >= _HOPPER_SINCE:
        return runtime
    if year >= _PADDED_SINCE:
        return runtime.patched(kernels={"attention": "cudnn-8"})
    host = load_runtime("megatron-deepspeed")  # measured in 2023: small layers wait for the host
    nemo = "nemo" in text(row, "framework").lower()
    return runtime.patched(
        kernels={
            "attention": "unfused" if "bert" in text(row, "model").lower() else "cudnn-8",
            "fusions": tuple(name for name in runtime.kernels.fusions if not (nemo and name == "gradients")),
        },
        launches={
            "operator": host.launches.operator,
            "backward": host.launches.backward,
            "collective": host.launches.collective,
            "block": host.launches.block,
            "parameter": _WRAPPED * host.launches.operator if nemo else 0.0,
        },
    )


def _compiled(row: Row, runtime: Runtime, assumed: list[str]) -> Runtime:
    """Return ``runtime`` with compiled blocks, or with operators launched one by one if the row ran eagerly."""
    said = " ".join(text(row, key) for key in ("framework", "notes", "precision")).lower()
    written = text(row, "compile").lower()
    if written in ("false", "no", "off", "0", "0.0") or re.search(
        r"\beager\b|\bno[ -_]compile|compile\W*(?:off|false)", said
    ):
        eager = load_runtime("fsdp")
        return runtime.patched(
            kernels={"fusions": eager.kernels.fusions},
            launches={"operator": eager.launches.operator, "backward": eager.launches.backward},
        )
    if not written and "compile" not in said:
        assumed.append(unstated("compilation", "blocks compiled"))
    return runtime
