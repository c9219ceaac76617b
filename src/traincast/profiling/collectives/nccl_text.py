"""The text of a log of nccl-tests or rccl-tests, cleaned of what copying and launchers add to it.

Logs reach us through terminals, web pages, spreadsheets and launchers. :func:`lines_of` undoes what they did: HTML,
colours, tables of Markdown, prefixes of ranks, and messages of the library in the middle of a line.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final, NamedTuple

from traincast.errors import FileFormatError

MAX_BYTES: Final = 200_000_000
"""Largest log that is read, in bytes."""
_LONGEST: Final = 2000
"""Characters of a line that are read."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAUNCHER: Final = re.compile(r"\[\d+,\d+\]\s*<std(?:out|err)>\s*:?")
_CELLS: Final = re.compile(r"<t[dhr][\s>]", re.IGNORECASE)
_ROW_END: Final = re.compile(r"</tr\s*>", re.IGNORECASE)
_LINE_END: Final = re.compile(r"<br\s*/?>|</(?:p|div|pre|li|code)\s*>", re.IGNORECASE)
_TAG: Final = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
_MESSAGE: Final = re.compile(r"[\w.\-]+:\d+:\d+\s+\[\d+\]\s.*$")


class Line(NamedTuple):
    """One line: its number in the file, its text, and the message of the library that stood in it ("" if none)."""

    number: int
    text: str
    message: str


def text_of(path: Path) -> str:
    """Return the text of a log. Any encoding is accepted; a file that cannot be read or is not text is refused."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileFormatError(f"{path} has more than {MAX_BYTES:,} bytes: is it a log of nccl-tests?")
        content = path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        raise FileFormatError(f"{path} is not text: expected the output of nccl-tests or rccl-tests")
    return content.decode("utf-8-sig", errors="replace")


def lines_of(text: str) -> list[Line]:
    """Return the lines of a log without markup, colours and the prefixes of launchers; blank lines are left out."""
    text = _LAUNCHER.sub(" ", _COLOUR.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    if _CELLS.search(text):  # a cell of an HTML table may stand on a line of its own
        text = _ROW_END.sub("\n", re.sub(r"[ \t]*\n[ \t]*(?=</?t[dhr][\s>])", " ", text, flags=re.IGNORECASE))
    if "<" in text or "&" in text:
        text = html.unescape(_TAG.sub(" ", _LINE_END.sub("\n", text)))
    lines = []
    for number, long in enumerate(text.replace("\xa0", " ").split("\n"), start=1):
        if not long or long.isspace():
            continue
        raw = long[:_LONGEST]
        said = _MESSAGE.search(raw)
        plain = raw[: said.start()] if said else raw
        lines.append(Line(number, plain.replace("\t", " ").rstrip(), said.group() if said else ""))
    return lines
