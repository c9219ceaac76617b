"""Pages are put together whole: every module once, in order, with the data inside and nothing outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import traincast.pages
from traincast.pages import page_text
from traincast.pages.assemble import script_of

FOLDER = Path(traincast.pages.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.js"))
PAGES = ("forecast", "search", "schedule", "compare", "sampled", "trace_diff")
HOSTILE = "</script><script>alert(1)</script><!-- __SCRIPT__ __DATA__ & \u2028"


@pytest.mark.parametrize("page", PAGES)
def test_every_module_of_a_page_stands_before_those_that_import_it(page: str) -> None:
    names = re.findall(r"^const \$(\w+) = \(\(\) => \{$", script_of(page), re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == page
    for at, name in enumerate(names):
        source = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        assert set(re.findall(r'from "\./(\w+)\.js";', source)) <= set(names[:at])


def test_every_module_belongs_to_a_page() -> None:
    used = {name for page in PAGES for name in re.findall(r"^const \$(\w+) = ", script_of(page), re.MULTILINE)}
    assert used == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_the_other_exports_and_uses(name: str) -> None:
    source = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    for names, other in re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', source, re.MULTILINE):
        text = (FOLDER / f"{other}.js").read_text(encoding="utf-8")
        exported = set(re.findall(r"^export (?:async )?(?:const|function|class) (\w+)", text, re.MULTILINE))
        imported = {word.strip() for word in names.split(",")}
        assert imported <= exported
        body = re.sub(r"^import .*$", "", source, flags=re.MULTILINE)
        assert {word for word in imported if not re.search(rf"\b{word}\b", body)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_no_string_of_the_data_leaves_its_element(page: str) -> None:
    text = page_text(page, {"name": HOSTILE, "value": float("nan")})
    assert text.count("<script") == 2
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert json.loads(found) == {"name": HOSTILE, "value": None}


@pytest.mark.parametrize("path", sorted(p for p in FOLDER.iterdir() if p.is_file()), ids=lambda path: path.name)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("name", MODULES)
def test_functions_and_methods_are_short(name: str) -> None:
    lines = (FOLDER / f"{name}.js").read_text(encoding="utf-8").splitlines()
    opens = re.compile(r"( {0,2})(?:export )?(?:(?:async )?function )?\w+\(.*\{$")
    starts = {n: found[1] for n, line in enumerate(lines) if (found := opens.match(line))}
    assert starts
    for start, indent in starts.items():
        end = next(n for n in range(start + 1, len(lines)) if lines[n].startswith(indent + "}"))
        assert end - start <= 80
