"""Untrusted files, plain or gzipped, read within the limits stated here.

A log is somebody else's file: it may be a gigabyte on one line, an archive under another name, or cut off. In every
case, reading it gives columns, or an error of one line that says what is wrong.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from traincast.errors import FileFormatError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BYTES: Final = 4 * 1024**3
"""Largest text, unpacked; the tables of public logs are below 2 GB."""
MAX_JSON_BYTES: Final = 512 * 1024**2
MAX_LINE_BYTES: Final = 1024**2
MAX_COLUMNS: Final = 1000
MAX_RATIO: Final = 200
"""Largest ratio of unpacked to packed bytes: logs have 5 to 30, a gzip bomb 1,000."""

_HEAD_BYTES: Final = 64 * 1024
_HARMLESS_BYTES: Final = 64 * 1024**2
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_OTHERS: Final = (
    (b"PK\x03\x04", "a ZIP archive: unpack it"),
    (b"BZh", "packed with bzip2: unpack it, or pack it with gzip"),
    (b"\xfd7zXZ", "packed with xz: unpack it, or pack it with gzip"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd: unpack it, or pack it with gzip"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: fetch it with git lfs pull"),
)
_DELIMITERS: Final = (",", "\t", ";")


@dataclass(frozen=True)
class Source:
    """A file of jobs or nodes; ``head`` is how its text begins, "" for Parquet."""

    path: Path
    head: str

    @property
    def is_parquet(self) -> bool:
        """Return whether it is a Parquet file, which has no text."""
        return self.path.suffix == ".parquet"

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.head.splitlines() if line.strip()), "")

    @cached_property
    def delimiter(self) -> str:
        """Return the character that separates the columns of the first line."""
        return max(_DELIMITERS, key=self.first_line.count)

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The columns of a table, or the cells of its first line."""
        if self.is_parquet:
            return _parquet_columns(self.path)
        try:
            cells = next(csv.reader([self.first_line], delimiter=self.delimiter), [])
        except csv.Error:
            return ()
        return tuple(cell.strip() for cell in cells)


def open_source(path: Path) -> Source:
    """Look at the beginning of a file; refuse what cannot be a table or a log."""
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else "it is no regular file" if path.exists() else "no such file"
        raise FileFormatError(f"cannot read {path}: {found}; give the path of a file")
    with reading(path):
        with path.open("rb") as file:
            magic = file.read(64)
        if path.suffix == ".parquet":
            if not magic.startswith(b"PAR1"):
                raise FileFormatError(f"{path} is not a Parquet file, although its name says so: rename it")
            return Source(path=path, head="")
        if magic.startswith(b"PAR1"):
            raise FileFormatError(f"{path} is a Parquet file: its name must end in .parquet")
        with open_bytes(path, max_bytes=MAX_BYTES, max_line=None) as stream:
            head = stream.read(_HEAD_BYTES)
    return Source(path=path, head=_head_text(path, head))


def _head_text(path: Path, head: bytes) -> str:
    for magic, is_what in _OTHERS:
        if head.startswith(magic):
            raise FileFormatError(f"{path} is {is_what}")
    if head[257:262] == b"ustar":
        raise FileFormatError(f"{path} is a tar archive: unpack it, and give the table that is in it")
    if b"\0" in head:
        raise FileFormatError(f"{path} is a binary file: expected a table or a log as UTF-8 text")
    if not head.strip():
        raise FileFormatError(f"{path} is empty: expected a table or a log with a job or node on each line")
    return head.removeprefix(_BOM).decode("utf-8", errors="replace")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the operating system and of gzip into one line about ``path``."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(
            f"{path} is damaged: its gzip data are cut off or wrong ({_one_line(error)}); fetch it again"
        ) from error
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or _one_line(error)}; check it") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120].rstrip(".")


def printable(text: object, limit: int = 40) -> str:
    """Return a text of a file in a form that a message can show: one line, printable, not too long."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class Limited(io.RawIOBase):
    """The unpacked bytes of a file; reading fails as soon as they exceed a limit.

    ``has_blank_lines`` says whether one was seen so far.
    """

    def __init__(self, plain: IO[bytes], path: Path, *, packed: bool, max_bytes: int, max_line: int | None) -> None:
        self._plain = plain
        self._file = gzip.GzipFile(fileobj=plain) if packed else plain
        self._path = path
        self._max_bytes = max_bytes
        self._max_unpacked = max(_HARMLESS_BYTES, MAX_RATIO * path.stat().st_size) if packed else max_bytes
        self._max_line = max_line
        self._read = 0
        self._since_newline = 0
        self._last = b"\n"
        self.has_blank_lines = False

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer`` from the file."""
        view = memoryview(buffer).cast("B")
        chunk = self._file.read(len(view))
        self._check(chunk)
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """Close the file as well."""
        self._file.close()
        self._plain.close()
        super().close()

    def _check(self, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._read > self._max_bytes:
            raise FileFormatError(
                f"{self._path} holds more than {self._max_bytes / 1024**3:g} GiB of text: give a part of it"
            )
        if self._read > self._max_unpacked:
            raise FileFormatError(
                f"{self._path} unpacks to more than {MAX_RATIO} times its size: it is not a log; look at its content"
            )
        if self._max_line is None:
            return
        if b"\0" in chunk:
            raise FileFormatError(f"{self._path} is a binary file: expected a table or a log as UTF-8 text")
        self._note_blank_lines(chunk)
        newline = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self._since_newline = len(chunk) - 1 - newline if newline >= 0 else self._since_newline + len(chunk)
        if self._since_newline > self._max_line:
            raise FileFormatError(
                f"{self._path} has a line longer than {self._max_line // 1024**2} MiB: not a table of jobs or nodes"
            )

    def _note_blank_lines(self, chunk: bytes) -> None:
        text = self._last + chunk
        self.has_blank_lines |= b"\n\n" in text or b"\n\r\n" in text
        self._last = text[-2:]


def open_bytes(
    path: Path, *, max_bytes: int = MAX_BYTES, max_line: int | None = MAX_LINE_BYTES
) -> io.BufferedReader[Limited]:
    """Open ``path`` for reading bytes; gzip is recognised by content and unpacked. Close it after use."""
    plain = path.open("rb")
    packed = plain.read(2) == _GZIP
    plain.seek(0)
    return io.BufferedReader(
        Limited(plain, path, packed=packed, max_bytes=max_bytes, max_line=max_line), buffer_size=256 * 1024
    )


def read_text(source: Source, *, max_bytes: int, max_line: int | None = MAX_LINE_BYTES) -> str:
    """The whole text of a file."""
    with reading(source.path), open_bytes(source.path, max_bytes=max_bytes, max_line=max_line) as stream:
        data = stream.read()
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(source.path, data.count(b"\n", 0, error.start) + 1, data[error.start]) from error


def not_utf8(path: Path, line: int, byte: int) -> FileFormatError:
    """Return the error for text in another encoding."""
    return FileFormatError(f"{path} is not UTF-8: line {line} has the byte 0x{byte:02x}; save it as UTF-8")


def line_numbers(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines that are not blank; a reader of tables skips blank lines."""
    with reading(path), open_bytes(path) as stream:
        return [number for number, line in enumerate(stream, 1) if line.strip(b"\r\n")]


def first_not_utf8(path: Path) -> FileFormatError | None:
    """Return the error for the first line in another encoding, or ``None`` if there is none."""
    with reading(path), open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return not_utf8(path, number, line[error.start])
    return None


def _parquet_columns(path: Path) -> tuple[str, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return tuple(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as Parquet: {_one_line(error)}; write it again") from error
