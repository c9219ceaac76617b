"""Puts a page together: one HTML file with its style, scripts and data inside, which loads nothing.

The scripts are ES modules, one for each view, that a live page can load as they are. A page on disk cannot import
modules: browsers refuse that for files. So every module becomes a function here, and its imports become constants::

    import { make } from "./base.js";        const { make } = $base;
    export function timeline(...) { ... }    const $timeline = (() => { ...; return { timeline }; })();
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any, Final

from traincast.files import finite

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_PLACES: Final = re.compile("__(STYLE|PAGE|DATA|SCRIPT)__")


def page_text(page: str, data: Any) -> str:
    """Return the HTML text of ``page``, which shows ``data``: "forecast", "search", "schedule", "compare", "sampled".

    Numbers that JSON lacks become null. No string in ``data`` can end its script element or start another.
    """
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    pieces = {"STYLE": _read("base.css"), "PAGE": page, "DATA": text, "SCRIPT": script_of(page)}
    return _PLACES.sub(lambda match: pieces[match[1]], _read("shell.html"))


@cache
def script_of(page: str) -> str:
    """Return the script that draws ``page``: its module and every module that it imports, each one once."""
    made: dict[str, str] = {}
    _collect(page, made, ())
    return "\n".join(made.values())


def _collect(name: str, made: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add the module ``name`` to ``made``, after those that it imports."""
    if name in made:
        return
    assert name not in importers, f"{name}.js imports itself: {' > '.join((*importers, name))}"
    source = _read(f"{name}.js")
    for _, imported in _IMPORT.findall(source):
        _collect(imported, made, (*importers, name))
    exported = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = $\2;", source))
    assert not re.search(r"^(import|export)\b", body, re.MULTILINE), f"{name}.js: unknown form of import or export"
    made[name] = f"const ${name} = (() => {{\n{body}return {{ {exported} }};\n}})();"


def _read(name: str) -> str:
    return resources.files("traincast.pages").joinpath(name).read_text(encoding="utf-8")
