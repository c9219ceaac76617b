"""Write files atomically, and check outputs before long work.

A regular file is first written under a temporary name in the same folder, which then replaces it. A reader sees the old
content or the new content, never half of it, and a full disk or a kill loses nothing. A symlink stays a symlink: the
file that it points to is replaced. A device, a pipe, a socket, or a file that is this program's own standard output is
opened and written to directly.

Every error of the operating system becomes a :class:`FileFormatError` of one line: the file, the reason, the remedy.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from traincast.errors import FileFormatError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REMEDIES: Final = {
    **dict.fromkeys(_FULL, "free some space, or choose another place"),
    errno.EROFS: "choose a place that can be written to",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its symlinks form a loop; name the file itself",
}
_OTHERWISE: Final = "name a file in a folder that can be written to"


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces ``path`` when the block ends; if the block fails, ``path`` is unchanged."""
    try:
        with _opened(path) if _is_written_through(path) else _replacing(_target(path)) as file:
            yield file
    except BrokenPipeError as error:
        if path.exists() and _own_output(path.stat()) is not None:
            raise  # the reader of our output has closed it: not a failure
        raise refusal(path, error) from error
    except OSError as error:
        raise refusal(path, error) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""
    with writing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8; line ends stay as they are."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` atomically, as compact JSON; raises ``ValueError`` for NaN and infinity."""
    write_text(path, json.dumps(value, separators=(",", ":"), allow_nan=False))


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder of files atomically; an existing folder is replaced with everything in it."""
    target = _target(path)
    beside, before = _beside(target), _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.mkdir()
            for name, content in contents.items():
                _write_new(beside / name, content)
            if target.exists():
                target.rename(before)
            beside.rename(target)
        except BaseException:
            if before.exists() and not target.exists():
                before.rename(target)
            raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise refusal(path, error) from error


def make_folder(path: Path, *, parents: bool = True) -> None:
    """Create the folder ``path`` unless it exists."""
    try:
        path.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise refusal(path, error) from error


def check_output(path: Path, *, inputs: Mapping[str, Path] | None = None) -> None:
    """Refuse an output that cannot be written; call it before the work starts.

    ``inputs`` maps descriptions ("the table of runs") to the files that the work reads: an output must be none of them.
    """
    for what, given in (inputs or {}).items():
        if _is_same(path, given):
            raise FileFormatError(f"cannot write {path}: it is {what}, which would be overwritten; choose another name")
    try:
        if _is_written_through(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        beside = _beside(_target(path))
        _write_new(beside, b"")
        beside.unlink()
    except OSError as error:
        raise refusal(path, error) from error


def check_folder(path: Path) -> None:
    """Refuse an output folder that cannot be created or written to; call it before the work starts."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise FileFormatError(f"cannot write {path}: {there} is not a folder; choose another name")
    if not os.access(there, os.W_OK):
        raise refusal(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def check_outputs(outputs: Mapping[str, Path], *, inputs: Mapping[str, Path] | None = None) -> None:
    """Apply :func:`check_output` to several outputs, by the option that names each; no two may be the same file."""
    known: dict[str, Path] = {}
    for option, path in outputs.items():
        for other, taken in known.items():
            if _is_same(path, taken) and not _is_written_through(path):
                raise FileFormatError(f"{other} and {option} are both {path}: give each a file of its own")
        check_output(path, inputs=inputs)
        known[option] = path


def refusal(path: Path | str, error: OSError) -> FileFormatError:
    """Return the error that says why ``path`` cannot be written, and what to do."""
    given = Path(path)
    folder = Path(os.path.realpath(given)).parent
    if isinstance(error, IsADirectoryError):
        return FileFormatError(f"cannot write {path}: it is a folder; give the name of a file")
    if isinstance(error, FileNotFoundError | NotADirectoryError) and not folder.is_dir():
        found = f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist"
        return FileFormatError(f"cannot write {path}: {found}")
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    remedy = _REMEDIES.get(error.errno or 0, _OTHERWISE)
    return FileFormatError(f"cannot write {path}: {reason}; {remedy}")


def finite(value: Any) -> Any:
    """Return ``value`` ready for JSON: keys become strings, NaN and infinity become ``None``."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value  # a long column, as pages have them
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Where a file is written


def _is_written_through(path: Path) -> bool:
    """Return whether ``path`` must be written to directly, not replaced: a device, a pipe or our own output."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(found.st_mode) or _own_output(found) is not None


def _own_output(found: os.stat_result) -> int | None:
    """Return 1 or 2 if the file is our standard output or standard error (such as ``/dev/stdout``), else ``None``."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


def _target(path: Path) -> Path:
    """Return the regular file to replace, which is ``path`` with its symlinks resolved; refuse a read-only file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):  # leave read-only files alone
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return target


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


# How a file is written


def _beside(target: Path) -> Path:
    """Return a new hidden name in the same folder, short enough for any file system."""
    return target.with_name(f".{target.name[:40]}.{os.urandom(6).hex()}.part")


def _write_new(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _opened(path: Path) -> BinaryIO:
    """Open a device, a pipe or our own output; flush what was printed before."""
    descriptor = _own_output(path.stat())
    if descriptor is None:
        return path.open("wb")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return os.fdopen(os.dup(descriptor), "wb")


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    beside = _beside(target)
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError, AttributeError):  # keep mode and owner, as far as we may set them
            before = target.stat()
            beside.chmod(stat.S_IMODE(before.st_mode))
            os.chown(beside, before.st_uid, before.st_gid)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
