"""How tables of measured runs spell precisions, recomputation, schedules and optimizers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from traincast.cluster import Device
from traincast.measured.dialect import Meanings, Pattern, Said, meaning, vocabulary
from traincast.measured.run import unstated
from traincast.strategy import Runtime, load_precision
from traincast.tables import Row, RowError, text

_BLANKS: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """How rows spell what runs; comments in ``spellings.toml`` explain each entry."""

    precisions: Meanings[str]
    automatic: Pattern
    automatic_as: str
    integers: Pattern
    integers_as: str
    unsure: Pattern
    no_tf32: Said
    mixed: dict[str, str]
    recompute: dict[str, tuple[str, ...]]
    keeps_some: Said
    schedules: Meanings[str]
    adam: Pattern
    sgd: Pattern
    small_states: Pattern
    no_update: Said
    masked_rates: Said
    failed: Said
    release: Pattern


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
        name = words.automatic_as
        said.append(f"precision {written!r} names no 16-bit format: {name}")
    if name is None and words.integers.search(joined):
        name = words.integers_as
        said.append(f"precision {written!r} is not modelled: {name}, which has as many bits")
    if name is None:
        raise RowError(f"precision {written[:40]!r} is not known: expected one such as fp32, tf32, bf16, amp or fp8")
    if words.unsure.search(plain):
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
    if found is None and vocabulary(Spellings).keeps_some(row):
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
    return not vocabulary(Spellings).no_update(row)


def optimizer_of(row: Row, forecast: str, assumed: list[str]) -> None:
    """Add a sentence to ``assumed`` if the optimizer that is ``forecast`` is not the one that a row states."""
    written = text(row, "optimizer")
    plain, words = _BLANKS.sub("", written.lower()), vocabulary(Spellings)
    adam, said_adam = (words.adam.search(name) is not None for name in (forecast, plain))
    if not written:
        assumed.append(unstated("optimizer", forecast))
    elif words.small_states.search(plain) or adam != said_adam or not (adam or words.sgd.search(plain)):
        assumed.append(f"optimizer {written!r} is not modelled: {forecast}")
