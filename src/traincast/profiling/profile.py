"""``profile``: measure operators or collectives on the machine at hand, into a table to learn from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread
from typing import Any, Final

from traincast.errors import RequestError
from traincast.profiling.collectives.cases import CollectiveRequest
from traincast.profiling.collectives.measure import check_backend, is_launched, profile_collectives
from traincast.profiling.launch import run_locally
from traincast.profiling.operators.ask import OperatorRequest
from traincast.profiling.operators.measure import profile_operators
from traincast.profiling.output import Profile, Progress, Unmeasured, check_output

MOST_RANKS: Final = 1024
"""Processes that one machine starts at most."""


def profile(
    request: OperatorRequest | CollectiveRequest,
    *,
    output: str | Path,
    ranks: int | None = None,
    progress: Progress | None = None,
) -> Profile | None:
    """Measure what ``request`` asks for, and write the rows to the table ``output`` (``.parquet``).

    An ``OperatorRequest`` is measured in this process. A ``CollectiveRequest`` needs several processes: either every
    rank of a launcher such as ``torchrun`` calls this function, and all ranks but 0 return ``None``; or ``ranks``
    says how many processes to start on this machine. A table that exists is extended, and a run that was interrupted
    resumes: what was measured before is not measured again. ``progress`` is called with the number of measurements
    done, their total, and the name of the next one.

    Raises ``RequestError`` if the request or the output is impossible; then nothing is written.

    >>> from traincast import OperatorRequest, profile
    >>> tiny = OperatorRequest(models=("gpt:layers=1,hidden=16,heads=2,vocab=50,seq=8",), in_context=False, limit=2)
    >>> profile(tiny, output="mine.parquet").measured  # doctest: +SKIP
    2
    """
    path = Path(output)
    if isinstance(request, OperatorRequest):
        if ranks is not None:
            raise RequestError(f"ranks={ranks}: operators are measured in one process; leave it out")
        check_output(path, table="operators")
        return profile_operators(request, path, progress=progress)
    check_output(path, table="collectives")
    if ranks is None:
        return profile_collectives(request, path, progress=progress)
    check_ranks(ranks, request, what="ranks")
    facts = _told_by(request, path, ranks=ranks, progress=progress or (lambda done, total, what: None))
    import pyarrow.parquet as pq

    return Profile(
        output=path,
        rows=tuple(pq.read_table(path).to_pylist()),
        failures=tuple(Unmeasured(**failure) for failure in facts["failures"]),
        measured=facts["measured"],
        kept=facts["kept"],
        left=facts["left"],
        warnings=tuple(facts["warnings"]),
    )


def _told_by(request: CollectiveRequest, path: Path, *, ranks: int, progress: Progress) -> dict[str, Any]:
    """Measure with ``ranks`` processes on this machine; return what rank 0 says at the end."""
    told: dict[str, Any] = {}
    receive, send = os.pipe()
    with os.fdopen(receive, encoding="utf-8") as lines, os.fdopen(send, "wb") as stdout:

        def listen() -> None:
            for line in lines:
                said = json.loads(line)
                if isinstance(said, dict):
                    told.update(said)
                else:
                    progress(*said)

        listener = Thread(target=listen)
        listener.start()
        try:
            words = [json.dumps(request.to_dict()), str(path)]
            code = run_locally("traincast.profiling.collectives", words, ranks=ranks, stdout=stdout)
        finally:
            stdout.close()  # the lines end here
            listener.join()
    if "error" in told:
        raise RequestError(told["error"])
    if code:
        raise RequestError(f"{ranks} processes that measure collectives failed with exit code {code}: see above")
    return told


def check_ranks(ranks: int, request: CollectiveRequest, *, what: str) -> None:
    """Refuse a number of local processes that cannot run ``request``; ``what`` names it in the error."""
    if is_launched():
        raise RequestError(f"{what} {ranks}: a launcher has started the processes already; leave it out")
    if not max((2, *request.groups)) <= ranks <= MOST_RANKS:
        raise RequestError(
            f"{what} {ranks}: expected 2 to {MOST_RANKS} processes, and at least as many as the largest group has ranks"
        )
    check_backend(request.backend)
