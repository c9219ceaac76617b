"""Finished parts of long work, kept in a file so that a run that was stopped resumes where it was.

A journal is a file of JSON lines. The first line says what the work is: its kind, and a key of everything that its
results depend on. Every further line is one finished part: a name and a value. A line is appended as soon as its part
is finished, so a run loses at most the part that it was at when it was stopped, however it was stopped.
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
"""How every journal begins: with it, a first line that was cut short is told from a file of someone else."""


class Journal:
    """Finished parts of one piece of work, by name; use it as a context manager.

    ``kind`` is a noun for messages, such as "a calibration". Parts that ``path`` holds from an earlier run are in
    :attr:`parts` if kind and key are the same. A file that is no journal, is of another version or of another kind, or
    that another process has open, is refused. One with another key is refused as well, or with ``restart`` emptied
    and a warning left in :attr:`warnings`. Lines at the end that are damaged are dropped with a warning. Without a
    path, parts are kept in memory alone.
    """

    def __init__(self, path: Path | None, *, kind: str, key: str, restart: bool = False) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._header = {"format": FORMAT, "version": VERSION, "kind": kind, "key": key}
        self._restart = restart
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
        """Keep a finished part; ``value`` is anything that JSON can hold. A later value replaces an earlier one."""
        self._parts[name] = value
        self._write([name, value])

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """The value of a part: the one that is kept, or else what ``make`` returns, which is then kept."""
        if name not in self._parts:
            self.keep(name, make())
        return self._parts[name]

    def close(self) -> None:
        """Leave the file as it is, for the next run to resume from."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk; it was said when the part was written
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file: the work is finished and its result is saved."""
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
        if not sound:
            self._write(self._header)

    def _read(self, text: bytes, path: Path) -> int:
        """Take over the parts that ``text`` holds; return how many of its bytes are sound."""
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
        """Whether the parts after the first line ``found`` can be used; refuses what must not be written to."""
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise FileFormatError(
                f"{path} is no journal of {self._header['kind']}, or one of an older version: move it away"
            )
        if found.get("version") != VERSION:
            raise FileFormatError(
                f"{path} is a journal of version {found.get('version')}, and this is version {VERSION}: "
                "finish it with the Traincast that began it, or delete it"
            )
        if found.get("kind") != self._header["kind"]:
            raise FileFormatError(
                f"{path} is a journal of {found.get('kind')}, not of {self._header['kind']}: choose another output"
            )
        if found == self._header:
            return True
        said = f"{path} was begun for other inputs or by another version of Traincast"
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
        except OSError as error:
            raise refusal(self.path, error) from error


def key_of(*values: object) -> str:
    """A key of ``values``, told apart by their ``repr``, and of all code and data of this version of Traincast."""
    return hashlib.sha256(code_digest() + repr(values).encode()).hexdigest()


@cache
def code_digest() -> bytes:
    """A digest of every Python and TOML file of this package: what decides a result besides the inputs."""
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
    """What a line says, or nothing where it is cut short or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _lock(file: IO[bytes], path: Path) -> None:
    """Refuse a journal that another process writes; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this platform: nothing keeps two runs apart
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(f"{path} is in use: another run writes the same output; wait until it has ended") from error
