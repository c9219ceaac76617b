"""Entries of a ledger: how they are stored, and how they are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

FOLDER: Final = Path(__file__).parents[1] / "data" / "ledger"
Values: TypeAlias = tuple[str, ...]
Entry: TypeAlias = tuple[str, Values]
"""A key that says what was asked, and the answer: one value for each column, or a single one for a refusal."""
REFUSED: Final = "refused: "
_ROUNDING: Final = 1e-6
"""Networks compute in fp32, so figures of other machines agree to about six digits."""


@dataclass(slots=True)
class Scope:
    """What is to be computed: all or the ``small`` half, with the tables of measurements in ``data``.

    ``exact`` says that figures must agree to the last bit. A part that cannot compute some entries here calls
    :meth:`skip`; they are then not missed.
    """

    small: bool = False
    data: Path | None = None
    exact: bool = True
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, beginning: str, reason: str) -> None:
        """Skip all entries whose key starts with ``beginning``."""
        self.skipped[beginning] = reason

    def skips(self, key: str) -> bool:
        """Whether the entry of ``key`` was skipped."""
        return any(key.startswith(beginning) for beginning in self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the ledger: its file, its columns, and the function that computes its entries.

    Columns that are ``firm`` are the same on every machine; others depend on how it rounds.
    """

    name: str
    columns: tuple[str, ...]
    firm: tuple[str, ...] = ()
    entries: Callable[[Scope], Iterable[Entry]]

    @property
    def path(self) -> Path:
        """The file of the part."""
        return FOLDER / f"{self.name}.tsv"

    def computed(self, scope: Scope) -> dict[str, Values]:
        """Return the entries as the program answers now."""
        found: dict[str, Values] = {}
        for key, values in self.entries(scope):
            if key in found:
                raise ValueError(f"{self.name}: two entries are called {key}")
            if "\t" in key or "\n" in key or not (len(values) == len(self.columns) or _is_refusal(values)):
                raise ValueError(f"{self.name}: entry {key} does not have the columns {self.columns}")
            found[key] = tuple(_one_line(value) for value in values)
        return found

    def stored(self) -> dict[str, Values]:
        """Return the entries of the file."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        if lines[0].split("\t") != ["#", *self.columns]:
            raise SystemExit(f"{self.path.name} has the columns {lines[0]}, not {self.columns}: make it anew")
        return {key: tuple(values) for key, *values in (line.split("\t") for line in lines[1:])}

    def store(self, found: Mapping[str, Values]) -> None:
        """Write ``found`` to the file, sorted by key."""
        lines = ["\t".join(["#", *self.columns]), *("\t".join((key, *found[key])) for key in sorted(found))]
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _is_refusal(values: Values) -> bool:
    return len(values) == 1 and values[0].startswith(REFUSED)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One entry that is not what it was; ``old`` or ``new`` is None if the entry is there only once."""

    key: str
    columns: tuple[str, ...]
    old: Values | None
    new: Values | None

    def kind(self) -> str:
        """The columns that differ, by which differences are grouped."""
        if self.old is None or self.new is None:
            return "not in the ledger" if self.old is None else "in the ledger alone"
        if len(self.old) != len(self.new):
            return "refused now" if _is_refusal(self.new) else "refused before"
        return ", ".join(name for name, *_ in self._changed())

    def lines(self) -> Iterator[str]:
        """The key, and what was and is said in each column that differs."""
        yield f"  {self.key}"
        if self.old is None or self.new is None or len(self.old) != len(self.new):
            yield from (f"    {value}" for value in _arrow(self.old, self.new))
        else:
            yield from (f"    {name}: {old} → {new}{_ratio(old, new)}" for name, old, new in self._changed())

    def _changed(self) -> Iterator[tuple[str, str, str]]:
        assert self.old is not None
        assert self.new is not None
        names = ("text",) if _is_refusal(self.old) or _is_refusal(self.new) else self.columns
        pairs = zip(names, self.old, self.new, strict=True)
        return ((name, old, new) for name, old, new in pairs if old != new)


def _arrow(old: Values | None, new: Values | None) -> Iterator[str]:
    yield f"{'nothing' if old is None else ' '.join(old)} → {'nothing' if new is None else ' '.join(new)}"


def _ratio(old: str, new: str) -> str:
    """Return how much a number changed."""
    if "0x" not in old or "0x" not in new or not float.fromhex(old):
        return ""
    return f" ({float.fromhex(old):.6g} → {float.fromhex(new):.6g}, {float.fromhex(new) / float.fromhex(old) - 1:+.2e})"


def differences(part: Part, scope: Scope) -> tuple[int, list[Difference]]:
    """Compute the entries of ``part``, and return their number and those that are not as stored."""
    new, old = part.computed(scope), part.stored()
    keys = new if scope.small else {key: None for key in (*new, *old) if key in new or not scope.skips(key)}
    found = (Difference(key=key, columns=part.columns, old=old.get(key), new=new.get(key)) for key in sorted(keys))
    return len(new), [each for each in found if not _agree(each, part.firm, exact=scope.exact)]


def _agree(entry: Difference, firm: tuple[str, ...], *, exact: bool) -> bool:
    """Whether an entry is as stored; if that need not be exact, figures may differ a little, and digests of them."""
    old, new = entry.old, entry.new
    if old == new or exact or old is None or new is None or len(old) != len(new) or _is_refusal(old):
        return old == new
    return all(
        a == b or (name not in firm and _close(a, b)) for name, a, b in zip(entry.columns, old, new, strict=True)
    )


def _close(old: str, new: str) -> bool:
    """Whether two figures differ by no more than rounding; digests of figures always may."""
    numbers = [float.fromhex(text) for text in (old, new) if text.startswith("0x")]
    return len(numbers) < 2 or math.isclose(*numbers, rel_tol=_ROUNDING)
