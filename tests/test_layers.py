"""Imports point down the layers, and PyTorch is loaded only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import traincast

ROOT = Path(traincast.__file__).parent

LAYERS: list[set[str]] = [
    {"errors"},
    {"brief", "units", "tables", "imports", "files", "compiled", "collector", "schema", "processes"},
    {"engines", "journal", "pages"},
    {"graph", "cluster"},
    {"work"},
    {"strategy", "estimate"},
    {"ask"},
    {"resolve"},
    {"simulate", "evidence"},
    {"report", "export"},
    {"forecast"},
    {"traces", "measured", "resources"},
    {"searching", "fitting"},
    {"scheduling"},
    {"validating", "calibrating"},
    {"cli", "web"},
]
ASIDE = {"profiling": "simulate", "testbed": "traces"}
"""Packages that really run things stand to the side. Each may use what is below the layer named here."""
NETWORKS = {
    "graph/huggingface/kernels.py",
    "graph/onnx/module.py",
    "fitting/operators/fi_net.py",
    "fitting/inspector/network.py",
}
"""Modules of PyTorch: imported where a network is trained, and nowhere else."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(p for p in ROOT.rglob("*.py") if p.name != "__main__.py" and p != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    """The package, or module, directly below ``traincast`` that ``path`` belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST) -> set[str]:
    """Dotted names of everything imported, at module level or later, for types or for use."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def parts_imported(path: Path) -> set[str]:
    names = imports_of(ast.parse(path.read_text(encoding="utf-8")))
    return {name.split(".")[1] for name in names if name.startswith("traincast.")}


def imported_on_load(path: Path) -> set[str]:
    """Top-level packages that importing the module itself imports."""
    found: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body + node.orelse)
            elif isinstance(node, ast.Try | ast.ClassDef):
                visit(node.body)

    visit(ast.parse(path.read_text(encoding="utf-8")).body)
    return found


def test_every_part_has_a_layer() -> None:
    assert {part_of(p) for p in MODULES} - set(ASIDE) <= set(LEVEL)


def imported_upwards(path: Path) -> set[str]:
    """The parts that the module at ``path`` imports and that do not stand below it."""
    part = part_of(path)
    others = parts_imported(path) - {part} - {"__version__"}
    if part in ASIDE:
        return {other for other in others if LEVEL.get(other, 0) >= LEVEL[ASIDE[part]]}
    # What stands to the side is for the command line and the page alone.
    return {other for other in others if LEVEL.get(other, LEVEL["validating"]) >= LEVEL[part]}


def test_imports_point_down() -> None:
    assert {str(path): found for path in MODULES if (found := imported_upwards(path))} == {}


def module_of(path: Path) -> str:
    """The dotted name of the module at ``path``."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def circles_of(imports: dict[str, set[str]]) -> list[set[str]]:
    """Modules that import one another, directly or through others: each largest set, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in imports[name]:
            if other not in number:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            circle = set(path[path.index(name) :])
            del path[path.index(name) :]
            if len(circle) > 1:
                found.append(circle)

    for name in imports:
        if name not in number:
            visit(name)
    return found


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports for types and inside functions count; a name from a package is its module, or else its ``__init__``."""
    modules = {module_of(path): path for path in MODULES}
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = imports_of(ast.parse(path.read_text(encoding="utf-8")))
        imports[name] = {each if each in modules else each.rpartition(".")[0] for each in named} & set(modules) - {name}
    assert circles_of(imports) == []


def test_strategy_and_its_cost_models_do_not_know_each_other() -> None:
    for path in MODULES:
        if part_of(path) == "strategy":
            assert "estimate" not in parts_imported(path)
        if part_of(path) == "estimate":
            assert "strategy" not in parts_imported(path)


def may_import_pytorch(path: Path) -> bool:
    """Whether the module at ``path`` may import PyTorch when it is loaded: the zoo, networks, and what stands aside."""
    if path.is_relative_to(ROOT / "graph" / "zoo") and path.name not in ("__init__.py", "registry.py", "traceable.py"):
        return True
    return part_of(path) in ASIDE or path.relative_to(ROOT).as_posix() in NETWORKS


def test_pytorch_is_imported_only_by_the_zoo_and_the_networks() -> None:
    heavy = {"torch", "transformers", "torch_geometric", "ray"}
    assert [str(path) for path in MODULES if not may_import_pytorch(path) and imported_on_load(path) & heavy] == []


@pytest.mark.parametrize("module", ["traincast", "traincast.cli.main", "traincast.forecast", "traincast.graph.load"])
def test_importing_does_not_load_pytorch(module: str) -> None:
    heavy = ("torch", "transformers", "numba", "pandas")
    code = f"import sys, {module}; print(sorted(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_forecast_loads_nothing_of_what_it_is_not_asked() -> None:
    """Tracing, fine-tuning, events, servers, traces and pages are loaded by the asks that need them."""
    parts = "graph.capture graph.huggingface graph.tuning estimate.events simulate.server strategy.uneven report.page"
    idle = tuple(f"traincast.{part}" for part in (*parts.split(), "report.trace", "resources.forecasting", "pages"))
    code = (
        "import sys\n"
        "from traincast import predict\n"
        "predict('llama3-8b', cluster='dgx-h100:4', strategy='dp=8,tp=4', global_batch=256)\n"
        f"print([m for m in sys.modules if m.startswith({idle})])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_asking_for_help_does_not_load_pytorch() -> None:
    code = (
        "import sys\n"
        "from traincast.cli.main import main\n"
        "sys.argv = ['traincast', '--help']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "sys.stderr.write(str('torch' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False"
    assert "predict" in done.stdout


def test_no_module_has_names_that_say_nothing() -> None:
    assert [p for p in MODULES if p.stem in ("utils", "helpers", "common", "misc")] == []
