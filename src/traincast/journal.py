"""Journals: files with the finished parts of long work, from which an interrupted run resumes.

A journal is a file of JSON lines. The first line identifies the work: its kind, and a key of everything that its
results depend on. Every further line is one finished part: a name and a value. A line is appended as soon as its part
is finished, so an interrupted run loses at most the part that it was working on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Final

from traincast.errors import FileFormatError, RequestError
from traincast.files import refusal

FORMAT: Final = "traincast-journal"
VERSION: Final = 1
_START: Final = json.dumps({"format": FORMAT}, separators=(",", ":")).encode().removesuffix(b"}")
"""The first bytes of every journal; they distinguish a journal whose first line is incomplete from any other file."""


class Journal:
    """Finished parts of one piece of work, by name; use it as a context manager.

    ``kind`` is a noun for messages, such as "a calibration". If ``path`` has the same kind and key, its parts are in
    :attr:`parts`. A file that is not a journal, has another version or another kind, or is open in another process, is
    refused. A journal with another key is refused too; with ``restart`` it is emptied instead, with a warning in
    :attr:`warnings`. Damaged lines at the end are dropped with a warning. Without a path, parts are kept only in
    memory. With ``sync``, a part is on the disk when :meth:`keep` returns; without it, a power failure may lose the
    last parts.
    """

    def __init__(self, path: Path | None, *, kind: str, key: str, restart: bool = False, sync: bool = True) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._header = {"format": FORMAT, "version": VERSION, "kind": kind, "key": key}
        self._restart = restart
        self._sync = sync
        self._parts: dict[str, Any] = {}
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                self._open(path)
            except BaseException:
                self.close()
                raise

    @property
    def parts(self) -> Mapping[str, Any]:
        """All finished parts, in the order in which they were first kept."""
        return MappingProxyType(self._parts)

    def keep(self, name: str, value: Any) -> None:
        """Save a finished part; ``value`` must be expressible in JSON. A later value replaces an earlier one."""
        self._parts[name] = value
        self._write([name, value])

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the saved value of a part; if there is none, call ``make`` and save its result."""
        if name not in self._parts:
            self.keep(name, make())
        return self._parts[name]

    def close(self) -> None:
        """Close the file; the next run resumes from it."""
        if self._file is not None:
            with suppress(OSError):  # a full disk was reported when the part was written
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Delete the file; call it when the work is finished and its result is saved."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, path: Path) -> None:
        try:
            self._file = path.open("a+b")
            _lock(self._file, path)
            self._file.seek(0)
            text = self._file.read()
            sound = self._read(text, path)
            if sound < len(text):
                self._file.truncate(sound)
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise refusal(path, error) from error
        if sound:
            return
        try:
            self._write(self._header)
        except FileFormatError:
            if not text:  # created just now: leave no empty journal behind
                path.unlink(missing_ok=True)
            raise

    def _read(self, text: bytes, path: Path) -> int:
        """Read the parts in ``text``; return the number of its bytes before any damage."""
        first, *lines = text.splitlines(keepends=True) or [b""]
        if not first or (not first.endswith(b"\n") and (_START.startswith(first) or first.startswith(_START))):
            return 0
        if not self._is_ours(_value(first), path):
            return 0
        sound = len(first)
        for number, line in enumerate(lines):
            match _value(line):
                case [str(name), value]:
                    self._parts[name] = value
                    sound += len(line)
                case _:
                    left = len(lines) - number
                    self.warnings.append(f"{path}: {left} damaged line{'s' if left > 1 else ''} at the end dropped")
                    break
        return sound

    def _is_ours(self, found: Any, path: Path) -> bool:
        """Return whether the parts after the first line ``found`` can be used; refuse a file of other work."""
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise FileFormatError(
                f"{path} is not a journal of {self._header['kind']}, or an older version wrote it: move it away"
            )
        if found.get("version") != VERSION:
            raise FileFormatError(
                f"{path} is a journal of version {found.get('version')}, but this Traincast uses version {VERSION}: "
                "finish it with the Traincast that started it, or delete it"
            )
        if found.get("kind") != self._header["kind"]:
            raise FileFormatError(
                f"{path} is a journal of {found.get('kind')}, not of {self._header['kind']}: choose another output"
            )
        if found == self._header:
            return True
        said = f"{path} was started for other inputs or by another version of Traincast"
        if not self._restart:
            raise FileFormatError(f"{said}: finish that first, or delete it")
        self.warnings.append(f"{said}: its finished parts are not used")
        return False

    def _write(self, entry: Any) -> None:
        if self.path is None:
            return
        assert self._file is not None, "a closed journal takes no parts"
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise refusal(self.path, error) from error


def key_of(*values: object) -> str:
    """Return a key of the ``repr`` of ``values`` and of all code and data of this version of Traincast."""
    return hashlib.sha256(code_digest() + repr(values).encode()).hexdigest()


@cache
def code_digest() -> bytes:
    """Return a digest of every Python and TOML file of this package, on which results depend besides the inputs."""
    digest = hashlib.sha256()
    for file in _sources(resources.files("traincast")):
        digest.update(file.read_bytes())
    return digest.digest()


def _sources(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith((".py", ".toml")):
            yield entry
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry)


def _value(line: bytes) -> Any:
    """Return the value of a line, or ``None`` if it is incomplete or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock the file; refuse a journal that another process writes. The lock is released when the process ends."""
    try:
        import fcntl
    except ImportError:  # not on this platform: two runs are not kept apart
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(f"{path} is in use: another run writes the same output; wait until it ends") from error
