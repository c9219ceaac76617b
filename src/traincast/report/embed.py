"""Data in an offline page: one JSON document in the template's script, which no string in it can leave."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from traincast.files import finite

_PLACEHOLDER: Final = "__TRAINCAST_DATA__"


def page_text(package: str, template: str, data: Any) -> str:
    """The page ``template`` of ``package`` with ``data`` in it; numbers that JSON lacks become null."""
    page = resources.files(package).joinpath(template).read_text(encoding="utf-8")
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # nothing in the data may end the script element or start another
        text = text.replace(character, f"\\u{ord(character):04x}")
    return page.replace(_PLACEHOLDER, text, 1)
