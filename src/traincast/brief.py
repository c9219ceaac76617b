"""How a result shows itself in a session: a few lines in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class BriefTable(NamedTuple):
    """A headline, and a table below it; rows are as long as ``columns``, which are empty for a table without a head."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    columns: Sequence[str] = ()


class Brief:
    """A result that shows its :meth:`brief`, of one screen at most, instead of everything that it holds.

    A dataclass below it is declared with ``repr=False``, or its own representation wins.
    """

    __slots__ = ()

    def brief(self) -> BriefTable:
        """Return what a reader wants to see first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, rows, columns = self.brief()
        table = [list(row) for row in ([columns, *rows] if columns else rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join((title, *(f"  {line.rstrip()}" for line in lines)))

    def _repr_html_(self) -> str:
        """Return the same as HTML, which notebooks show; every text is escaped."""
        from html import escape  # only notebooks need it

        title, rows, columns = self.brief()
        head = [f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in columns)}</tr>"] if columns else []
        body = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        return f"<b>{escape(title)}</b><table>{''.join((*head, *body))}</table>"
