"""The page of a comparison: the parts of both steps over one another, and a table of operators that sorts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from traincast.pages import page_text
from traincast.traces.diff import TraceDiff

_MOST_OPERATORS: Final = 200


def diff_page(found: TraceDiff) -> str:
    """Return the page of ``found``; of its operators, those with the largest changes."""
    data = asdict(found)
    data["left_out"] = max(0, len(found.operators) - _MOST_OPERATORS)
    data["operators"] = data["operators"][:_MOST_OPERATORS]
    return page_text("trace_diff", data)
