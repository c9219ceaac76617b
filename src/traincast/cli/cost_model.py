"""The inspector among the bundles that ``--bundle`` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def inspector_in(bundles: Sequence[str], *, wanted: bool) -> tuple[tuple[str, ...], str | None]:
    """Return the bundles of times, and the bundle of an inspector if there is one; refuses one that is not ``wanted``.

    ``shipped`` is the inspector that comes with Traincast. A path that is no bundle counts as one of times, and is
    refused when these are read.
    """
    from traincast.errors import FileFormatError, RequestError
    from traincast.estimate.bundle import kind_of_bundle

    times: list[str] = []
    inspectors: list[str] = []
    for path in bundles:
        try:
            kind = "resources" if path == "shipped" else kind_of_bundle(Path(path))
        except FileFormatError:
            kind = "unknown"
        (inspectors if kind == "resources" else times).append(path)
    if len(inspectors) > 1:
        raise RequestError(f"{' and '.join(inspectors[:2])} are both inspectors: give one")
    if inspectors and not wanted:
        raise RequestError(f"{inspectors[0]} is an inspector, which predicts resources: add --resources")
    return tuple(times), inspectors[0] if inspectors else None
