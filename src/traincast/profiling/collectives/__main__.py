"""One rank that measures collectives: ``python -m traincast.profiling.collectives ASK FILE``, with the ask as JSON.

Rank 0 writes lines of JSON to standard output: ``[done, total, what]`` before each measurement, and at the end an
object with what it found, or with the ``error`` that stopped it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from traincast.errors import TraincastError
from traincast.profiling.collectives.cases import CollectiveRequest
from traincast.profiling.collectives.measure import profile_collectives


def _tell(*line: object) -> None:
    sys.stdout.write(json.dumps(line[0] if len(line) == 1 else line) + "\n")
    sys.stdout.flush()


def _run(ask: str, output: str) -> int:
    try:
        found = profile_collectives(CollectiveRequest.from_dict(json.loads(ask)), Path(output), progress=_tell)
    except TraincastError as error:
        _tell({"error": str(error)})
        return 2
    except KeyboardInterrupt:  # the process that started this one says what was kept
        return 130
    if found is not None:
        _tell(
            {
                "failures": [asdict(failure) for failure in found.failures],
                "measured": found.measured,
                "kept": found.kept,
                "left": found.left,
                "warnings": found.warnings,
            }
        )
    return 0


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
