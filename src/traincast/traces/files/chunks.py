"""Reads the events of a trace piece by piece, so that a file of any size needs the memory of one piece.

A piece ends where an event ends. Where that is, the text alone does not tell for certain (an event may hold objects),
so each cut is tried: a piece that was cut at the wrong place is no JSON. Events and the text around them are decoded
by typed structs, see :mod:`traincast.traces.files.kineto`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from traincast.errors import FileFormatError
from traincast.traces.files.kineto import Event, Header

PIECE_BYTES: Final = 4 << 20

_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb'\}(\s*,\s*)\{\s*"')
_CLOSE: Final = re.compile(rb'\](?=\s*(?:,\s*"|\}))')
_WINDOW: Final = 1 << 16
_TRIES: Final = 16
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before UTF-8."""

_decoder: Final = msgspec.json.Decoder(list[Event])
_header: Final = msgspec.json.Decoder(Header)


class NotATraceError(FileFormatError):
    """A file that is whole, but holds something else than a profiler's trace."""


class EventReader:
    """The events of one file, in pieces; ``header`` is set when all pieces have been read."""

    def __init__(self, path: Path, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._path = path
        self._piece = piece_bytes
        self.header = Header()

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            with self._path.open("rb") as plain:
                packed = plain.read(2) == _GZIP
                plain.seek(0)
                if not packed:
                    yield from self._pieces(plain)
                    return
                with gzip.open(plain, "rb") as file:
                    yield from self._pieces(file)  # type: ignore[arg-type]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileFormatError(
                f"trace {self._path} is damaged or cut: its compressed data do not end as they should; copy or record "
                "it again"
            ) from error
        except FileNotFoundError:
            raise FileFormatError(f"trace {self._path} does not exist; give a file or a folder of traces") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FileFormatError(f"cannot read trace {self._path}: {reason}") from error

    def _pieces(self, file: BinaryIO) -> Iterator[list[Event]]:
        text, before = self._opening(file)
        while True:
            more = file.read(self._piece)
            if not more:
                break
            text += more
            events, text = self._cut(text)
            if events:
                yield events
        yield self._closing(text, before)

    def _opening(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """Return the text from the first event on, and the text before it."""
        text = b""
        while True:
            more = file.read(self._piece)
            text = (text + more).removeprefix(_MARK)
            begin = text.lstrip()[:1]
            if begin == b"[":
                return text.lstrip()[1:], b""
            if found := _EVENTS.search(text):
                return text[found.end() :], text[: found.end()]
            if self._path.suffix == ".et":
                raise NotATraceError(
                    f"{self._path} is a Chakra execution trace, which only `trace replay` and `trace whatif` read"
                )
            if begin not in (b"{", b"") or (not more and not begin):
                raise NotATraceError(f"{self._path} is not a trace: it is not JSON; give what PyTorch's profiler wrote")
            if not more:
                raise self._without_events(text)

    def _without_events(self, text: bytes) -> FileFormatError:
        try:
            keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
        except msgspec.MsgspecError:
            return self._cut_short()
        if "nodes" in keys:
            return NotATraceError(
                f"{self._path} is an execution trace, which has no times of kernels: give the profiler's trace of the "
                "same run"
            )
        return NotATraceError(f"{self._path} is not a trace: it has no traceEvents; give what PyTorch's profiler wrote")

    def _cut(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the events that are complete, and the text after them."""
        for window in (_WINDOW, 16 * _WINDOW, len(text)):
            offset = max(0, len(text) - window)
            ends = [(m.start() + 1 + offset, m.end(1) + offset) for m in _BETWEEN.finditer(text[offset:])]
            for end, begin in reversed(ends[-_TRIES:]):
                try:
                    return _decoder.decode(b"[" + text[:end] + b"]"), text[begin:]
                except msgspec.ValidationError as error:
                    raise self._unreadable(error) from error
                except msgspec.DecodeError:
                    continue
            if offset == 0:
                break
        return [], text

    def _closing(self, text: bytes, before: bytes) -> list[Event]:
        """Return the last events, and read what stands beside the list."""
        if not before:
            return self._decoded(text.rstrip().removesuffix(b"]"), whole=text.rstrip().endswith(b"]"))
        for found in reversed(list(_CLOSE.finditer(text))):
            try:
                self.header = _header.decode(before + text[found.start() :])
                return _decoder.decode(b"[" + text[: found.start()] + b"]")
            except msgspec.ValidationError as error:
                raise self._unreadable(error) from error
            except msgspec.DecodeError:
                continue
        raise self._cut_short()

    def _decoded(self, text: bytes, *, whole: bool) -> list[Event]:
        try:
            if whole:
                return _decoder.decode(b"[" + text + b"]")
        except msgspec.ValidationError as error:
            raise self._unreadable(error) from error
        except msgspec.DecodeError:
            pass
        raise self._cut_short()

    def _unreadable(self, error: msgspec.ValidationError) -> FileFormatError:
        return FileFormatError(f"trace {self._path} has an event that cannot be read: {error}")

    def _cut_short(self) -> FileFormatError:
        return FileFormatError(
            f"trace {self._path} is damaged or cut: its list of events does not end as it should; copy or record it "
            "again"
        )
