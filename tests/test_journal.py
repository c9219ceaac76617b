"""Finished parts survive any end of a run; files of other work are refused or not used, and never lost in silence."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from traincast import FileFormatError, RequestError
from traincast.journal import Journal, code_digest, key_of


def journal(path: Path | None, **other: Any) -> Journal:
    return Journal(path, **{"kind": "a test", "key": "abc", **other})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.journal"


def test_parts_of_a_stopped_run_are_there_in_the_next(path: Path) -> None:
    with journal(path) as first:
        first.keep("b", [1.5, None])
        first.keep("a", {"x": "é"})
        first.keep("b", 2)
    with journal(path) as second:
        assert list(second.parts.items()) == [("b", 2), ("a", {"x": "é"})]
        assert second.warnings == []
        second.remove()
    assert not path.exists()


def test_a_part_is_made_once(path: Path) -> None:
    with journal(path) as first:
        assert first.part("a", lambda: 7) == first.part("a", lambda: 8) == 7
    with journal(path) as second:
        assert second.part("a", lambda: 9) == 7


def test_without_a_path_parts_are_kept_in_memory() -> None:
    with journal(None) as kept:
        assert kept.part("a", lambda: 7) == kept.part("a", lambda: 8) == 7
        kept.remove()


@pytest.mark.parametrize("tail", [b'["c",{"sour', b"\x00\xff\n", b'["c"]\n', b'{"c":1}\n', b"[3,4]\n"])
def test_a_damaged_tail_is_dropped_with_a_warning(path: Path, tail: bytes) -> None:
    with journal(path) as first:
        first.keep("a", 1)
    with path.open("ab") as file:
        file.write(tail)
    with journal(path) as second:
        assert dict(second.parts) == {"a": 1}
        assert second.warnings == [f"{path}: 1 damaged line at the end dropped"]
        second.keep("b", 2)
    with journal(path) as third:
        assert third.warnings == []
        assert dict(third.parts) == {"a": 1, "b": 2}


@pytest.mark.parametrize("size", [0, 1, 12, 40])
def test_a_journal_cut_in_its_first_line_starts_anew(path: Path, size: int) -> None:
    journal(path).close()
    path.write_bytes(path.read_bytes()[:size])
    with journal(path) as now:
        assert dict(now.parts) == {}
        now.keep("a", 1)
    with journal(path) as now:
        assert dict(now.parts) == {"a": 1}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("text", [b"hello", b"hello\n", b"{}\n", b"[1]\n", b'{"format":"other"}\n', b"\xff\n"])
def test_a_file_that_is_no_journal_is_refused_and_stays(path: Path, text: bytes, restart: bool) -> None:
    path.write_bytes(text)
    with pytest.raises(FileFormatError) as caught:
        journal(path, restart=restart)
    said = f"{path} is not a journal of a test, or an older version wrote it: move it away"
    assert str(caught.value) == said
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"kind": "a search"}, "is a journal of a search, not of a test: choose another output"),
        (
            {"key": "def"},
            "was started for other inputs or by another version of Traincast: finish that first, or delete",
        ),
    ],
)
def test_a_journal_of_other_work_is_refused_and_stays(path: Path, other: dict[str, str], said: str) -> None:
    with journal(path, **other) as first:
        first.keep("a", 1)
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match=said):
        journal(path)
    assert path.read_bytes() == before


def test_a_journal_of_another_version_is_refused(path: Path) -> None:
    path.write_text(json.dumps({"format": "traincast-journal", "version": 9}) + "\n", encoding="utf-8")
    with pytest.raises(
        FileFormatError, match="journal of version 9, but this Traincast uses version 1: finish it with"
    ):
        journal(path, restart=True)


def test_a_journal_with_another_key_starts_anew_where_asked(path: Path) -> None:
    with journal(path, key="def") as first:
        first.keep("a", 1)
    with journal(path, restart=True) as second:
        assert dict(second.parts) == {}
        begun = f"{path} was started for other inputs or by another version of Traincast"
        assert second.warnings == [f"{begun}: its finished parts are not used"]
        second.keep("b", 2)
    with journal(path) as third:
        assert dict(third.parts) == {"b": 2}


def test_two_runs_cannot_write_one_journal(path: Path) -> None:
    with journal(path), pytest.raises(RequestError, match="in use: another run writes the same output"):
        journal(path)
    journal(path).close()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot write .*the folder .* does not exist"):
        journal(tmp_path / "no" / "work.journal")


def test_a_full_disk_is_one_line_and_the_parts_before_it_are_kept(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    added = 0
    with journal(path) as kept:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(FileFormatError, match=r"cannot write .*work\.journal: file too large; free some space"):
                for number in range(100):
                    kept.keep(str(number), "x" * 100)
                    added = number + 1
            kept.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with journal(path) as again:
        assert list(again.parts) == [str(number) for number in range(added)]
        assert added > 2


def test_a_key_tells_values_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(1, "a") == key_of(1, "a")
    assert len({key_of(1, "a"), key_of("1", "a"), key_of((1, "a"))}) == 3
    before = key_of(1)
    monkeypatch.setattr("traincast.journal.code_digest", lambda: code_digest() + b"another version")
    assert key_of(1) != before
