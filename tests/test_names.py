"""One class name, one meaning; a name in a docstring exists."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import traincast

PACKAGE = Path(traincast.__file__).parent


def test_no_class_name_has_two_meanings() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(homes) > 200
    assert not {name: found for name, found in homes.items() if len(found) > 1}


REFERENCE = re.compile(r":(?:mod|class|func|data|meth|attr|exc):`~?traincast\.([\w.]+)`")


def test_docstrings_refer_to_what_exists() -> None:
    missing, found = [], 0
    for path in PACKAGE.rglob("*.py"):
        for name in REFERENCE.findall(path.read_text(encoding="utf-8")):
            found += 1
            if not exists(name.split(".")):
                missing.append(f"{path.relative_to(PACKAGE)}: traincast.{name}")
    assert found > 100
    assert missing == []


def exists(parts: list[str]) -> bool:
    """Whether a module of the package, a name in it, or a member of a class in it, is called this."""
    place = PACKAGE
    while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
        place, parts = place / parts[0], parts[1:]
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = source.read_text(encoding="utf-8")
    return all(re.search(rf"\b{part}\b", text) for part in parts)


def test_a_reference_to_nothing_is_found() -> None:
    assert exists(["work", "Collective", "nbytes"])
    assert exists(["strategy", "exchange", "buckets"])
    assert not exists(["profiling", "events_beside"])
