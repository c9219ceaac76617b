"""Architectures: what devices of one architecture have in common beyond their datasheets, one TOML file for each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from traincast.schema import Text, convert

Figure = Annotated[float, Meta(ge=0.0, le=1e4)]
Share = Annotated[float, Meta(ge=0.01, le=1.0)]

_FOLDER: Final = Path(__file__).parent / "data" / "architectures"
_DEFAULT: Final = "default"
"""The file for architectures that have none of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """What products on matrix units draw, and how the clock follows a power limit (:mod:`traincast.estimate.power`)."""

    static: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.35
    """Share of the TDP that a busy device draws whatever its matrix units do: memory, links, leakage."""
    joules_per_tflop: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.0
    """Energy of 10¹² FLOP of products in 16 bits at full clock, in joules, beyond the static share. 0: not known;
    products then draw the TDP where they reach nine tenths of the peak rate."""
    exponent: Annotated[float, Meta(ge=1.0, le=4.0)] = 1.8
    """Power of the clock to which that draw is proportional: 1 if the voltage stays, 3 if it falls with the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What devices of one architecture have in common."""

    name: Text
    reaches: Mapping[str, Figure] = field(hash=False)
    """Fractions of datasheet rates that kernels reach; :mod:`traincast.estimate.operators.efficiency` names them."""
    matrix_flops: Figure = 0.0
    """FLOP of 16 bits per SM and cycle of the devices on which these fractions were measured; 0: not known.

    Matrix units that compute less are easier to feed (:func:`traincast.estimate.operators.efficiency.achievable`)."""
    measured: bool = True
    """Whether these fractions come from measurements of the architecture itself."""
    graphics: bool = True
    """False for an architecture that is not a GPU: operators measured on GPUs say nothing about it."""
    older_attention: Mapping[str, Share] = field(default_factory=dict, hash=False)
    """What older attention kernels reach of those made for the architecture, by their name (see ``attention`` of
    :class:`traincast.strategy.runtime.KernelTable`).

    FlashAttention 2 is made for Ampere, cuDNN 8 for early Hopper. Before it, FlashAttention 1 and its kernels in Triton
    ran; Dao ("FlashAttention-2", 2023) reports that its successor is 1.3 to 3 times as fast on A100. On Hopper,
    published steps with long sequences show 1.4. On H100, Shah et al. ("FlashAttention-3", 2024) report 350 to
    400 TFLOP/s of FlashAttention 2 and about 500 of cuDNN, where FlashAttention 3 reaches 640 to 740."""
    power: PowerCurve = PowerCurve()
    """What products draw, and how a power limit slows them."""
    older_grouped: bool = False
    """Whether grouped products of training are about as fast as plain ones, as on A100
    (:mod:`traincast.estimate.operators.grouped`)."""
    lanes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Columns of a register: tensors of attention are padded to a multiple of them (JAX, "Pallas TPU details")."""
    expert_tile: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Rows of a tile of grouped products. A tile that holds rows of two experts is computed for each of them (Gale et
    al., "MegaBlocks", 2022, and its kernel in JAX), so each expert pays for one tile more. MaxText's default is 512."""
    multicast: bool = False
    """Whether switches of fast links can add up what they carry."""
    collective_overhead: Annotated[float, Meta(ge=0.01, le=100.0)] = 1.0
    """Times to begin a collective and latencies inside a node, over those of other architectures."""
    own_network: bool = False
    """Whether links of their own join the devices of a pod, so that nodes have no network adapters to count."""
    pcie: Annotated[int, Meta(ge=3, le=5)] = 4
    """Generation of PCIe."""
    era: str = ""
    """When nodes with such devices were built. Collectives of one era resemble each other; empty: an era of its own."""
    generation: Annotated[int, Meta(ge=0, le=100)] = 0
    """Place among the architectures of one maker, whose libraries change little from one to the next; 0: in no such
    order."""
    capabilities: tuple[Text, ...] = ()
    """CUDA compute capabilities, or their first numbers."""
    runtime: str = ""
    """The runtime that stands for every framework on the architecture, because all of them run on the maker's own
    compiler; empty: frameworks differ."""


@cache
def architecture_names() -> tuple[str, ...]:
    """Names of the architectures that have a file, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml") if path.stem != _DEFAULT))


@cache
def load_architecture(name: str) -> Architecture:
    """Returns the architecture ``name``. One that has no file gets the usual fractions, which are not measured."""
    file = name if name in architecture_names() else _DEFAULT
    table = tomllib.loads((_FOLDER / f"{file}.toml").read_text(encoding="utf-8"))
    return convert({"name": name, **table}, Architecture, f"{file}.toml")
