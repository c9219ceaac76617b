"""The options of a verb, derived from the records that declare them: an option is written once.

A record is a dataclass whose fields carry an :class:`traincast.ask.Option`: an ask, or what only the command line has,
such as the files that a verb writes. :func:`asks` gives a verb the options of its records, and calls it with one
instance of each. :func:`words_of` is the inverse: the words of the command line that mean an ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import update_wrapper
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import click
from msgspec import Meta

from traincast.ask import Batch, Count, Declared, Seed, Workers, declared, tables_of
from traincast.cli.options import COUNT, SEED, TIME, WORKERS

_FIRST: Final = ("cluster", "global_batch", "strategy")
_LAST: Final = ("output", "html", "explain", "as_json")
"""Options that a reader looks for first and last; the others stand between in the order of their declaration."""


def asks(
    *records: type, defaults: Mapping[str, Any] | None = None, without: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Any]:
    """Return the decorator that gives a verb the options of ``records``; the verb takes one instance of each.

    ``defaults`` are those of options whose default differs from that of their field in Python; ``MISSING`` makes an
    option required. Fields ``without`` an option on this verb keep their default.
    """
    own, hidden = dict(defaults or {}), frozenset(without)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            function(*(_filled(record, given) for record in records))

        made: Any = update_wrapper(called, function)
        found = {one.name: one for record in records for one in _shown(record) if one.name not in hidden}
        for name in reversed(_ordered(found)):
            made = _parameter(found[name], own)(made)
        return made  # type: ignore[no-any-return]

    return decorate


def words_of(ask: Any, *, defaults: Mapping[str, Any] | None = None) -> list[str]:
    """Return the words of the command line that mean ``ask``: its arguments, then the options that were stated.

    ``defaults`` are those of :func:`asks`.
    """
    found = {one.name: one for one in _shown(type(ask), nested=False)}
    words = [str(getattr(ask, name)) for name in found if _is_argument(found[name])]
    for name, one in found.items():
        value = getattr(ask, name)
        if _is_argument(one) or value == (defaults or {}).get(name, one.default) or value is False:
            continue
        if one.option.turns_off:  # such as a cache: how a verb works, not what is asked
            continue
        if value is True:
            words.append(_flag(one))
            continue
        if one.option.whole and isinstance(value, tuple):
            value = ",".join(map(str, value))
        for each in value if isinstance(value, tuple) else (value,):
            words += [_flag(one), "=".join(map(str, each)) if isinstance(each, tuple) else _short(each)]
    return words


def _ordered(names: Iterable[str]) -> list[str]:
    """Return the names of options in the order in which the help shows them."""
    between = [name for name in names if name not in (*_FIRST, *_LAST)]
    return [*(n for n in _FIRST if n in names), *between, *(n for n in _LAST if n in names)]


def _shown(record: Any, *, nested: bool = True) -> Iterator[Declared]:
    """Yield the fields that the command line has, those of tables within the record included."""
    for one in declared(record):
        if one.option.flag is not None:
            yield one
        elif nested and one.name in tables_of(record):
            yield from _shown(tables_of(record)[one.name])


def _filled(record: Any, given: Mapping[str, Any]) -> Any:
    """Return the record with the values of its options."""
    values: dict[str, Any] = {}
    for one in declared(record):
        if one.option.flag is not None:
            if given.get(one.name) is not None and given[one.name] != ():
                values[one.name] = _value(one, given[one.name])
        elif (table := tables_of(record).get(one.name)) and any(_shown(table)):
            made = _filled(table, given)
            values[one.name] = made if made.differs else None
    return record(**values)


def _value(one: Declared, given: Any) -> Any:
    if one.option.turns_off:
        return not given
    read = one.option.read
    if one.option.joined:
        given = one.option.joined.join(given)
        return given if read is None else read(given)
    if read is None:
        return given
    if not _is_several(one):
        return read(given)
    return dict(map(read, given)) if Mapping in _origins(one) else tuple(map(read, given))


def _parameter(one: Declared, defaults: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the decorator of one argument or option."""
    text, several = one.option.help, _is_several(one)
    if _is_argument(one):
        required, metavar = one.default is MISSING, one.option.metavar or None
        return click.argument(one.name, nargs=-1 if several else 1, required=required, metavar=metavar)
    if _kinds(one.kind) == [bool]:
        if one.default is None:  # yes, no, or not said
            return click.option(f"{_flag(one)}/--no-{_flag(one)[2:]}", one.name, default=None, help=text)
        return click.option(_flag(one), one.name, is_flag=True, help=text)
    default = defaults.get(one.name, one.default)
    shown = not several and default not in (MISSING, None, "", ()) and default is not True and not _is_zero(default)
    more: dict[str, Any] = {"default": default, "show_default": True} if shown else {}
    if one.option.bare is not None:
        more |= {"is_flag": False, "flag_value": one.option.bare}
    return click.option(
        *filter(None, (one.option.short, _flag(one))),
        one.name,
        type=_type(one),
        multiple=several,
        required=default is MISSING,
        metavar=one.option.metavar,
        help=f"{text} {one.option.again}".rstrip() if several else text,
        **more,
    )


def _is_zero(default: object) -> bool:
    return isinstance(default, float) and not default


def _is_argument(one: Declared) -> bool:
    return one.positional and not one.option.flag and not one.option.short


def _flag(one: Declared) -> str:
    return one.option.flag or "--" + one.name.replace("_", "-")


def _kinds(kind: Any) -> list[Any]:
    """Return the types that a field may have, without None."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [option for option in options if option is not NoneType]


def _is_several(one: Declared) -> bool:
    """Return whether an option may be given several times: a field of several values that no text states as a whole."""
    return bool(one.option.joined) or (not one.option.whole and bool(_origins(one) & {tuple, Sequence, Mapping}))


def _origins(one: Declared) -> set[Any]:
    """Return what the types of a field are made of: ``Sequence`` of ``Sequence[str]``."""
    return {get_origin(kind) for kind in _kinds(one.kind)}


def _type(one: Declared) -> Any:
    """Return the reader of an option's text: numbers as people write them, times with units, or the text itself."""
    kinds = _kinds(one.kind)
    if one.option.read is not None or _is_several(one) or str in kinds:
        return click.STRING
    if get_origin(kinds[0]) is Literal:
        return click.Choice(get_args(kinds[0]))
    if one.option.time:
        return TIME
    limits: Any = next((note for note in getattr(kinds[0], "__metadata__", ()) if isinstance(note, Meta)), None)
    if limits is None:
        return kinds[0]
    known = next((parser for kind, parser in _PARSERS if kind == kinds[0]), None)
    return known or click.IntRange(limits.ge, limits.le)


_PARSERS: Final = ((Count, COUNT), (Batch, COUNT), (Workers, WORKERS), (Seed, SEED))
"""Numbers that people also write as 4k or 1e12, or whose limits are not worth a mention in help."""


def _short(value: object) -> str:
    """Return a count as a person would write it: ``1e10``, not ``10000000000``."""
    if not isinstance(value, int):
        return str(value)
    short = re.sub(r"e\+0*", "e", f"{value:g}")
    return short if float(short) == value else str(value)
