"""Finds the device of the catalog that a text means, however its author spelt it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, cast

from traincast.cluster.catalog import device_names, device_table, load_device
from traincast.cluster.hardware import Device
from traincast.errors import RequestError, UnknownNameError

GENERIC: Final = "cpu"
"""The catalog's device for all processors."""
_GIB: Final = 1024**3
_MEMORY_TOLERANCE: Final = 0.12
_MAX_TEXT: Final = 1000
# A word may be glued to a vendor's or series' name before it, and to a form or a memory size after it.
_BEFORE: Final = r"(?:^|(?<=[^a-z0-9])|(?<=\dx)|nvidia|tesla|geforce|gtx|rtx|quadro|instinct|amd|intel|nv|aws)"
_AFTER: Final = r"(?=$|[^a-z0-9]|sxm|pcie|pci|hbm|nvl|x\d|\d+\s*gi?b)"
_OTHERS: Final = re.compile(
    r"\b(?:ascend(?!\W?910a?\b)|cambricon|mlu\d|kunlun|biren|metax|moore threads|mthreads|enflame)"
)
"""Makers and series that the catalog does not have; some of their names contain one of ours."""
_CORES: Final = re.compile(r"\b\d+ of \d+ cores$")
_RATE: Final = re.compile(r"\d+(?:\.\d+)?\s*[gt]i?b(?:it)?(?:/s|ps|\s+per\s+s)", re.IGNORECASE)
_MEMORY: Final = re.compile(r"(?<![0-9.])(\d+(?:\.\d+)?)\s*gi?b?(?![a-z0-9])", re.IGNORECASE)


class _Entry(NamedTuple):
    """The texts that mean a device: words for its model, words for its form, and its rank among equal matches."""

    name: str
    memory_bytes: float
    model: tuple[tuple[str, re.Pattern[str]], ...]
    form: tuple[re.Pattern[str], ...]
    rank: int


def find_device(text: str, memory_gb: float | None = None, form: str | None = None) -> Device:
    """Returns the device that ``text`` means, for instance ``NVIDIA_H100_80GB_HBM3`` or ``Tesla V100``.

    If several variants match, ``memory_gb`` and ``form`` (``PCIe``, ``SXM4``, or a machine such as ``DGX-2``) choose
    among them, and then the most common variant is taken (A100: SXM4 80 GB; V100: SXM2 16 GB). Raises
    ``UnknownNameError`` if none matches.
    """
    if len(text) > _MAX_TEXT or len(form or "") > _MAX_TEXT:
        raise RequestError(f"a device name has {len(text)} characters: give at most {_MAX_TEXT}")
    return _find(text, memory_gb, form or "")


def open_variants(text: str, memory_gb: float | None = None, form: str | None = None) -> tuple[str, ...]:
    """Returns the names of all variants that match the texts equally well, first the one that `find_device` returns.

    There are two or more if the texts state neither memory nor form (``A100``: four).
    """
    found = find_device(text, memory_gb, form)
    return (found.name, *(name for name in _equals(text, memory_gb, form or "") if name != found.name))


def measured_name(text: str) -> str:
    """The name of the device that a table of measurements calls ``text``: the catalog's, or that of a processor.

    The catalog has one device for all processors, though they differ. So a measured processor has a name of its own:
    its text in lower case, joined by hyphens. Operators and collectives of one profile use the same name.
    """
    try:
        found = find_device(text).name
    except UnknownNameError:
        if not is_processor(own_name(text)):
            raise
        found = GENERIC
    return own_name(text) if found == GENERIC else found


def own_name(text: str) -> str:
    """A device's text as a name: lower-case letters and digits, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def is_processor(name: str) -> bool:
    """Whether a name is that of a processor: one that the catalog recognises, or one with a count of cores.

    >>> is_processor("apple-m2-1-of-8-cores"), is_processor("intel-xeon-gold-6148"), is_processor("npu-1")
    (True, True, False)
    """
    try:
        return _CORES.search(name.replace("-", " ")) is not None or find_device(name).name == GENERIC
    except UnknownNameError:
        return False


def _find(text: str, memory_gb: float | None, form: str) -> Device:
    return load_device(_equals(text, memory_gb, form)[0])


@lru_cache(maxsize=4096)
def _equals(text: str, memory_gb: float | None, form: str) -> tuple[str, ...]:
    """The devices that match the texts best, the most common variant first."""
    plain = normalise(text)
    if plain.replace(" ", "-") in device_names():
        return (plain.replace(" ", "-"),)
    best_length, candidates = 0, list[_Entry]()
    for entry in _entries():
        length = max((len(word) for word, pattern in entry.model if pattern.search(plain)), default=0)
        if length > best_length:
            best_length, candidates = length, [entry]
        elif length == best_length and length:
            candidates.append(entry)
    if not candidates or _OTHERS.search(plain):
        hint = "add one of your own in a TOML file with a [device] table"
        raise UnknownNameError("device", text.strip(), device_names(), hint=hint)
    memory = memory_gb if memory_gb else stated_memory(text)
    if memory is not None:
        candidates = [entry for entry in candidates if _has_memory(entry, memory)] or candidates
    said = f"{plain} {normalise(form)}"
    forms = {entry.name: sum(bool(word.search(said)) for word in entry.form) for entry in candidates}
    best = [entry for entry in candidates if forms[entry.name] == max(forms.values())]
    return tuple(entry.name for entry in sorted(best, key=lambda entry: entry.rank))


def normalise(text: str) -> str:
    """``text`` in lower case, without trade marks, with single spaces in place of punctuation."""
    lower = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", " ", lower).strip()


@lru_cache(maxsize=4096)
def word_pattern(word: str) -> re.Pattern[str]:
    """Finds ``word`` in a normalised text, however its parts are spaced, but not inside a longer word."""
    parts = r"\s*".join(re.escape(part) for part in normalise(word).split())
    return re.compile(f"{_BEFORE}{parts}{_AFTER}")


@lru_cache(maxsize=1)
def _entries() -> tuple[_Entry, ...]:
    entries = []
    for name in device_names():
        table = device_table(name)
        aliases = cast("dict[str, tuple[str, ...]]", table.get("aliases", {}))
        words = (*aliases.get("model", ()), name)
        entries.append(
            _Entry(
                name=name,
                memory_bytes=cast("float", table["memory_bytes"]),
                model=tuple((normalise(word).replace(" ", ""), word_pattern(word)) for word in words),
                form=tuple(word_pattern(word) for word in aliases.get("form", ())),
                rank=cast("int", aliases.get("rank", 1)),
            )
        )
    return tuple(entries)


def stated_memory(text: str) -> float | None:
    """The GB of memory that the name of a device states (``A100-40GB``), or ``None``; rates do not count."""
    match = _MEMORY.search(_RATE.sub(" ", text.replace("_", " ")))
    return float(match.group(1)) if match else None


def _has_memory(entry: _Entry, memory_gb: float) -> bool:
    nearest = min(abs(entry.memory_bytes / unit - memory_gb) for unit in (1e9, _GIB))
    return nearest <= _MEMORY_TOLERANCE * memory_gb
