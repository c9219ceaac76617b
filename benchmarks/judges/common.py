"""Functions that all judges share: stand-ins for packages that only kernels need, and the loop over the exports."""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest.mock import MagicMock


class _Absent(ModuleType):
    """A module whose every name is a class or a function that does nothing."""

    __version__ = "99.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {}) if name[:1].isupper() else MagicMock(name=name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self.names:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def stand_in(*names: str) -> None:
    """Let packages be imported that are not installed: configuration code imports them, but calls none of them."""
    missing = frozenset(name for name in names if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(missing))


def environment(world: int) -> None:
    """Set what a launcher would set for the first of ``world`` ranks."""
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(min(8, world)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29511",
    )


def fake_ranks(world: int) -> None:
    """Make a group of ``world`` ranks whose collectives do nothing; this process is its first rank."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    environment(world)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def kind_of(annotation: Any) -> str:
    """Return the type of a field: ``int``, ``float``, ``bool``, ``str``, choices as ``a|b``, otherwise ``any``."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType) and len(inner) == 1:
        return kind_of(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return annotation.__name__ if annotation in (int, float, bool, str) else "any"


def fields_of(made: type, prefix: str = "") -> dict[str, str]:
    """Fields of a dataclass and of the dataclasses in it, by dotted names."""
    found: dict[str, str] = {}
    hints = get_type_hints(made)
    for field in fields(made):
        options = [hints[field.name], *get_args(hints[field.name])]
        inner = [option for option in options if is_dataclass(option)]
        for option in inner:
            found |= fields_of(option, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        if not inner:
            found[prefix + field.name] = kind_of(hints[field.name])
    return found


def judge(accept: Callable[[dict[str, Any]], None], known: Callable[[], dict[str, str]]) -> None:
    """Write the ``known`` fields, and then the error that ``accept`` raised for each line, to the file in ``argv``.

    Lines come from standard input. Standard output is not used, because frameworks print to it.
    """
    with Path(sys.argv[1]).open("w", encoding="utf-8") as verdicts:
        verdicts.write(json.dumps(known()) + "\n")
        for line in sys.stdin:
            try:
                accept(json.loads(line))
                words = ""
            except (Exception, SystemExit) as error:
                words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
            verdicts.write(json.dumps(words) + "\n")
            verdicts.flush()
