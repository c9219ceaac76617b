"""Dialects: how published tables of measured runs say what they say, as TOML files.

A dialect has any of these tables::

    [columns]                       # our column = the name that a table gives it
    gpu = "GPU type"
    [words.precision]               # in a column: a regular expression for the whole cell = our word
    "half.*" = "fp16"
    [[facts]]                       # what rows do not state: if all cells in `when` match, `state` fills columns
    when = { source = "acme", gpu = "H100" }
    state = { gpus_per_node = 8, interconnect = "8x NDR" }
    [recipes]                       # and topics: tables of words, which readers of rows declare

A table of a published source that needs nothing but these is read without a change of code. Files in ``dialects/`` are
one for each source, and one in ``dialects/common`` for each topic that many share.

A module that reads rows declares a topic as a frozen dataclass: ``Recipes`` has what all shipped dialects say in their
tables ``[recipes]``. A source adds to the common tables, and its entries in lists stand before common ones. It cannot
replace what another file says, so no source changes how another is read. Patterns are regular expressions; in a list of
spellings the first that matches counts. A rule that looks for words in a row names the columns to look in, so no code
knows which column a publisher uses for what::

    no_update = { columns = "notes", words = 'no optimi[sz]er' }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from traincast.errors import FileFormatError, nearest
from traincast.schema import convert, read_table, read_toml, table_of
from traincast.tables import Row, text

T = TypeVar("T")
Pattern: TypeAlias = re.Pattern[str]
"""A regular expression, compiled when a topic is first needed."""
Meanings: TypeAlias = tuple[tuple[Pattern, T], ...]
"""Patterns and what each means."""
_OF_ROWS: Final = ("columns", "words", "facts")
_NOT_BEFORE: Final = r"(?<!\bno )(?<!\bnot )(?<!\bnon.)(?<!\bwithout )(?<!\bw/o )(?<!\bdisabled )"
_NOT_AFTER: Final = r"(?!\w*\W{0,3}(?:false|off|disabled|none)\b)"
"""How texts deny what they name: ``no FSDP``, ``packing=False``."""
_BETWEEN: Final = " ; "
"""Stands between the texts of two columns, so that words of one are not read on in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Words to look for in a row, in upper or lower case.

    ``columns`` are names with blanks between them. Text that matches ``unless`` is skipped. With ``undenied``, words
    do not count where the text denies them: ``no FSDP``, ``packing=False``.
    """

    columns: str
    words: str
    unless: str = ""
    undenied: bool = False

    def find(self, row: Row) -> re.Match[str] | None:
        """Return the first place of a row that has the words; ``None`` if there is none."""
        said = _BETWEEN.join(text(row, column) for column in self.columns.split())
        if self.unless:
            said = _pattern(self.unless, undenied=False).sub("", said)
        return _pattern(self.words, undenied=self.undenied).search(said)

    def __call__(self, row: Row) -> bool:
        """Return whether a row has the words."""
        return self.find(row) is not None


@cache
def _pattern(words: str, *, undenied: bool) -> Pattern:
    return re.compile(rf"{_NOT_BEFORE}(?:{words}){_NOT_AFTER}" if undenied else words, re.IGNORECASE)


def vocabulary(kind: type[T]) -> T:
    """Return the words of a topic in all shipped dialects; ``kind`` is the dataclass that declares them."""
    words: T = _topic(kind)  # type: ignore[arg-type]
    return words


def meaning(spellings: Meanings[T], said: str) -> T | None:
    """Return what the first pattern that ``said`` matches means; ``None`` if it matches none."""
    return next((word for pattern, word in spellings if pattern.search(said)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What rows leave out: if the cells of all columns in ``when`` match, empty columns in ``state`` get a value."""

    when: dict[str, str]
    state: dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How the rows of one table are brought into our columns and words."""

    columns: dict[str, str] = field(default_factory=dict)
    words: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()

    def columns_of(self, names: Iterable[str]) -> list[str]:
        """Return the columns of translated rows of a table with the columns ``names``."""
        return list(self.translated(dict.fromkeys(names))) + [column for fact in self.facts for column in fact.state]

    def translated(self, row: Row) -> dict[str, Any]:
        """Return a row with our columns and words; columns and cells that already are ours stay as they are."""
        theirs = {name: ours for ours, name in self.columns.items() if ours not in row and name in row}
        made = {theirs.get(name, name): cell for name, cell in row.items()}
        for column, words in self.words.items():
            said = text(made, column)
            found = next((word for pattern, word in words.items() if said and re.fullmatch(pattern, said)), None)
            made |= {column: found} if found is not None else {}
        for fact in self.facts:
            if all(re.fullmatch(pattern, text(made, column)) for column, pattern in fact.when.items()):
                made |= {column: value for column, value in fact.state.items() if not text(made, column)}
        return made


def load_dialect(path: Path) -> Dialect:
    """Read a user's dialect; one line says what is wrong in a file that is none."""
    where, table = f"{path}:", read_toml(path, "dialect")
    read = read_table(table, table_of(Dialect), where)
    for n, fact in enumerate(table.get("facts", ())):
        for key in fact.keys() - {"when", "state"}:
            raise FileFormatError(f"{where} facts[{n}] has unknown key {key!r}: {nearest(key, ('when', 'state'))}")
    dialect = Dialect(**read)
    for place, pattern in _patterns(dialect):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FileFormatError(f"{where} {place} is {pattern!r}: not a regular expression, {error}") from None
    return dialect


def shipped() -> Traversable:
    """Return the folder of the shipped dialects."""
    return resources.files("traincast.measured").joinpath("dialects")


@cache
def shipped_dialect() -> Dialect:
    """Return the columns, words and facts of all shipped dialects."""
    merged = _merged()
    return convert({key: merged[key] for key in _OF_ROWS if key in merged}, Dialect, "dialects:")


def _patterns(dialect: Dialect) -> Iterator[tuple[str, str]]:
    for column, words in dialect.words.items():
        yield from ((f"words.{column}", pattern) for pattern in words)
    for n, fact in enumerate(dialect.facts):
        yield from ((f"facts[{n}].when.{column}", pattern) for column, pattern in fact.when.items())


@cache
def _topic(kind: Any) -> Any:
    name = kind.__name__.lower()
    table = _merged()[name]
    unknown = table.keys() - {each.name for each in fields(kind)}
    assert not unknown, f"dialects say {unknown} in [{name}], which {kind.__name__} does not declare"
    return msgspec.convert(table, kind, dec_hook=lambda _, pattern: re.compile(pattern))


@cache
def _merged() -> Mapping[str, Any]:
    """All shipped dialects as one: those of sources, and then the common ones."""
    folder = shipped()
    files = [*_tomls(folder), *_tomls(folder.joinpath("common"))]
    merged: dict[str, Any] = {}
    for file in files:
        _add(merged, tomllib.loads(file.read_text(encoding="utf-8")))
    return merged


def _tomls(folder: Traversable) -> Sequence[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)


def _add(merged: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add what a further dialect says: keys that are not there, and lists behind those that are."""
    for key, value in more.items():
        if isinstance(value, dict):
            _add(merged.setdefault(key, {}), value)
        elif isinstance(value, list) and key in merged:
            merged[key] = [*merged[key], *value]
        else:
            assert key not in merged, f"two dialects say {key}: {merged[key]!r} and {value!r}"
            merged[key] = value
