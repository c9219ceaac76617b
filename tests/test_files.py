"""Files are written whole or not at all, and never in place of what is not a file."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from traincast import FileFormatError, files


def fail_to_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the disk refuse what is flushed to it from now on."""

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), files.writing(path) as file:
        file.write(b"half of it")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    files.write_text(path, "new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_symlink_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(Path("there") / "real.txt")
    files.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    target.unlink()
    files.write_text(link, "made")
    assert link.is_symlink()
    assert target.read_text() == "made"


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    files.check_output(pipe)
    files.write_json(pipe, [1, 2])
    reader.join(timeout=10)
    assert found == [b"[1,2]"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
@pytest.mark.parametrize("through_link", [False, True])
def test_a_device_is_written_through(tmp_path: Path, through_link: bool) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("devices cannot be made or opened here")
    path = device
    if through_link:
        path = tmp_path / "link"
        path.symlink_to(device)
    files.check_output(path)
    files.write_text(path, "gone")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert path.is_symlink() == through_link


def test_standard_output_sent_to_a_file_is_written_through(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from traincast import files; print('before');"
        "files.write_text(Path('/dev/stdout'), 'page\\n'); print('after')"
    )
    with (tmp_path / "out.txt").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out.txt").read_text() == "before\npage\nafter\n"


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    path, new = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("old")
    path.chmod(0o640)
    files.write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    files.write_text(new, "new")
    usual = tmp_path / "c.txt"
    usual.touch()
    assert new.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space left on device; free some space"),
        (errno.EDQUOT, "disk quota exceeded; free some space"),
        (errno.EFBIG, "file too large; free some space"),
        (errno.EIO, "input/output error"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    fail_to_write(monkeypatch, number)
    with pytest.raises(FileFormatError, match=f"cannot write .*: {said}") as raised:
        files.write_text(path, "new")
    assert "\n" not in str(raised.value)
    with pytest.raises(FileFormatError, match=f"cannot write .*: {said}"):
        files.write_folder(tmp_path / "b", {"c": b"new"})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "b"
    files.write_folder(path, {"one": b"1", "two": b"2"})
    files.write_folder(path, {"one": b"3"})
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {"one": b"3"}
    fail_to_write(monkeypatch, errno.ENOSPC)
    with pytest.raises(FileFormatError, match="no space left"):
        files.write_folder(path, {"one": b"4"})
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {"one": b"3"}
    assert [p.name for p in path.parent.iterdir()] == ["b"]


def test_what_cannot_be_written_is_refused_beforehand_and_when_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path, said in (
        (tmp_path, "it is a folder; give the name of a file"),
        (tmp_path / "none" / "a.txt", f"the folder {tmp_path / 'none'} does not exist"),
        (tmp_path / "file" / "a.txt", f"{tmp_path / 'file'} is not a folder"),
        (tmp_path / "loop", "symlinks"),
        (tmp_path / ("n" * 300), "file name too long; choose a shorter name"),
        (Path("/proc/a.txt"), "cannot write /proc/a.txt"),
    ):
        with pytest.raises(FileFormatError, match=said) as before:
            files.check_output(path)
        with pytest.raises(FileFormatError, match=said) as then:
            files.write_text(path, "text")
        assert str(before.value) == str(then.value)
        assert str(then.value).startswith(f"cannot write {path}: ")
    files.check_output(tmp_path / "a.txt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("mine")
    path.chmod(0o444)
    with pytest.raises(FileFormatError, match="permission denied"):
        files.write_text(path, "new")
    assert path.read_text() == "mine"


def test_no_output_may_be_an_input_or_another_output(tmp_path: Path) -> None:
    table, link, new = tmp_path / "table.csv", tmp_path / "link.csv", tmp_path / "new.csv"
    table.write_text("a,b")
    link.symlink_to(table)
    with pytest.raises(FileFormatError, match="it is the table of runs, which would be overwritten"):
        files.check_output(link, inputs={"the table of runs": table})
    with pytest.raises(FileFormatError, match="--a and --b are both"):
        files.check_outputs({"--a": new, "--b": tmp_path / "." / "new.csv"})
    files.check_outputs({"--a": Path(os.devnull), "--b": Path(os.devnull)})
    assert table.read_text() == "a,b"


def test_json_has_no_numbers_that_json_lacks(tmp_path: Path) -> None:
    value = {1: [float("nan"), (2.5, float("-inf"))], "b": [1, 2]}
    assert files.finite(value) == {"1": [None, [2.5, None]], "b": [1, 2]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", value)
    files.write_json(tmp_path / "a.json", files.finite(value))
    assert json.loads((tmp_path / "a.json").read_text()) == {"1": [None, [2.5, None]], "b": [1, 2]}
