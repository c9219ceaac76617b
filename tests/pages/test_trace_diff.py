"""The page of two traces, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.pages.conftest import Opened
from traincast import TraceDiff
from traincast.traces.diff import Difference, diff_page

Open = Callable[..., Opened]
FOUND = TraceDiff(
    before="</script><b>old",
    after="new.json.gz",
    step=Difference(name="step", before_s=0.2, after_s=0.15),
    parts=(
        Difference(name="compute", before_s=0.1, after_s=0.1),
        Difference(name="bubble", before_s=0.0, after_s=0.0),
        Difference(name="host", before_s=0.1, after_s=0.05),
    ),
    operators=tuple(
        Difference(name=f"aten::op{n}", before_s=1e-3, after_s=1e-3 * n, count_before=2, count_after=n)
        for n in range(250)
    ),
    notes=("the devices differ: a and b",),
)


def test_both_steps_are_drawn_over_one_another_and_operators_sort(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(diff_page(FOUND), encoding="utf-8")
    shown = opened(path)
    assert shown.problems == []
    assert shown.requests == [path.as_uri()]
    assert shown.texts("h2") == ["Warnings", "Where the steps go", "Operators"]
    assert shown.texts(".tile .value") == ["200ms", "150ms", "−50ms"]
    assert shown.count(".rows .bar") == 2
    assert shown.texts("tbody tr:nth-child(2) td")[3:5] == ["0 s", "–"]
    assert shown.count("tbody tr") == 3 + 200
    assert "50 with smaller changes are left out" in " ".join(shown.texts(".hint"))
    assert shown.overflow <= 0
