"""Whether forecasts repeat what rows state: read tables of measured runs, and count the values that were replaced.

    python -m benchmarks.stated DATA            # DATA has steps.parquet, dp_steps.parquet, finetune.parquet or more

Every table below DATA whose name tells its kind is read; nothing is forecast. For each source it prints the rows that
were read, those that cannot be read, and those whose stated value would be replaced without a reason, which must be
none. Then it lists the stated values that were replaced because their rows contradict themselves or state something
that is not modelled.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.markdown import table as markdown
from traincast.errors import TraincastError
from traincast.measured import Reading, assumption_kind, dp_steps, steps
from traincast.measured.stated import ReplacedError, explained, replaced
from traincast.measured.table import completed
from traincast.measured.tuning import rows as finetune
from traincast.tables import Row, RowError, read_rows, text

Reader = Callable[[Row], Reading]


def _tuned(row: Row) -> Reading:
    run = finetune.read_tuning(0, row).run
    return Reading(request=run.request, assumed=run.assumed)


KINDS: Final[tuple[tuple[str, Reader], ...]] = (
    ("dp_steps", dp_steps.read_row),
    ("steps", steps.read_row),
    ("finetune", _tuned),
)
"""How names of tables begin, and what reads a row of each; the first that matches counts."""
_LENGTHS: Final = ("seq", "seq_len")


@dataclass(slots=True)
class Count:
    """Rows of one source: all, those that cannot be read, and those whose stated values were replaced."""

    rows: int = 0
    refused: int = 0
    overridden: int = 0
    said: Counter[str] = field(default_factory=Counter)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the tables and print what was replaced; exit with 1 if anything was replaced without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    counts = counted(parser.parse_args(arguments).data)
    columns = ["table", "source", "rows", "cannot be read", "replaced, said", "replaced without a reason"]
    lines = [
        [*key, *map(str, (one.rows, one.refused, sum(one.said.values()), one.overridden))]
        for key, one in counts.items()
    ]
    print(markdown(columns, lines))
    reasons = [[key[1], kind, str(n)] for key, one in counts.items() for kind, n in one.said.most_common()]
    print(f"\n{markdown(['source', 'reason', 'values'], reasons)}\n")
    overridden = sum(one.overridden for one in counts.values())
    print(f"rows whose stated value is overridden by a rule: {overridden} of {sum(c.rows for c in counts.values()):,}")
    if overridden:
        raise SystemExit(1)


def counted(folder: Path) -> dict[tuple[str, str], Count]:
    """Return the counts of each table below ``folder`` and each source in it."""
    found: dict[tuple[str, str], Count] = defaultdict(Count)
    for path in sorted(folder.rglob("*.parquet")):
        read = next((reader for start, reader in KINDS if path.stem.startswith(start)), None)
        if read is None:
            continue
        rows = read_rows(path, needs=())
        for row in completed(rows) if read is steps.read_row else rows:
            name = text(row, "source") or text(row, "family") or "unknown"
            count_row(row, read, found[str(path.relative_to(folder)), name])
    return dict(found)


def count_row(row: Row, read: Reader, count: Count) -> None:
    """Read one row and add it to ``count``."""
    count.rows += 1
    try:
        reading = read(row)
    except ReplacedError:
        count.overridden += 1
        return
    except (RowError, TraincastError):
        count.refused += 1
        return
    told = [item.column for item in replaced(row, reading.request) if not _is_mean(row, item.column, item.read)]
    count.overridden += any(not explained(column, reading.assumed) for column in told)
    count.said.update(
        assumption_kind(sentence) for sentence in reading.assumed if any(explained(c, [sentence]) for c in told)
    )


def _is_mean(row: Row, column: str, read: object) -> bool:
    """Whether a row of fine-tuning states the longest sequence, and also the tokens of a step, which set the mean."""
    stated = text(row, "avg_tokens_per_step")
    return column in _LENGTHS and bool(stated) and isinstance(read, int | float) and read > 0


if __name__ == "__main__":
    main()
