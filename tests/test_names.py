"""One class name, one meaning."""

import ast
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
