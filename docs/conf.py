"""Settings of the documentation site. ``make docs`` builds it in build/site, without network access.

The pages are the Markdown files of this folder; they also read well on a code host. This file writes two more folders
before each build: docs/api, from the public names of ``traincast``, and docs/project, from files that cannot stay where
they are: those outside this folder, and search.md.
"""

from __future__ import annotations

import inspect
import os
import re
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pygments.lexer import RegexLexer  # type: ignore[import-untyped]
from pygments.token import Generic, Text  # type: ignore[import-untyped]

import traincast

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent

project = "Traincast"
author = "The Traincast authors"
release = version = traincast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "index"
smartquotes = False
exclude_patterns = ["search.md"]  # Sphinx writes its own search.html: the page is built as project/search.md
myst_heading_anchors = 4
myst_disable_syntax = ["myst_line_comment"]  # a line of text may begin with a per cent sign

html_theme = "furo"
html_title = "Traincast"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}  # a signature already lists the fields of a dataclass
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

nitpicky = True
# A name that is not public has no page to link to. A reference to a public name must resolve.
nitpick_ignore_regex = [("py:.*", r"(?!traincast\.\w+$).*")]

NAVIGATION: Final = {
    "Start": ["quickstart", "concepts", "project/examples"],
    "Forecast and search": [
        "strategies",
        "project/search",
        "export",
        "your-models",
        "fine-tuning",
        "your-hardware",
        "mixed",
        "runtimes",
    ],
    "Fit it to your machine": [
        "profile",
        "learned-times",
        "calibration",
        "collectives",
        "events",
        "testbed",
        "profiler-traces",
    ],
    "What a job draws": ["resources", "monitor", "inspector"],
    "Job queues": ["scheduling", "traces"],
    "How accurate it is": ["accuracy", "unseen", "evidence", "accuracy-tables", "peers", "operators", "your-runs"],
    "Look up": ["reference", "api/index", "design", "project/contributing", "project/changelog"],
}
"""The sections of the side bar and their pages."""

EXAMPLES: Final = [
    "predict_llama.py",
    "compare_strategies.py",
    "own_cluster.py",
    "own_cluster.toml",
    "my_model.py",
    "jax_step.py",
    "trace_and_page.py",
    "own_policy.py",
    "jobs.csv",
    "shared_jobs.csv",
]
"""The files of examples/, in the order in which their page shows them."""

PAGES: Final = {
    ROOT / "CONTRIBUTING.md": DOCS / "project/contributing.md",
    ROOT / "CHANGELOG.md": DOCS / "project/changelog.md",
    ROOT / "examples": DOCS / "project/examples.md",
    DOCS / "search.md": DOCS / "project/search.md",
    **{ROOT / "examples" / name: DOCS / f"project/examples.md#{name.replace('.', '')}" for name in EXAMPLES},
}
"""Files that have a page in docs/project."""

RELATIVE: Final = re.compile(r"\]\((?!https?:)([^)#\s]+)((?:#[^)\s]*)?)\)")
LANGUAGES: Final = {"py": "python", "toml": "toml", "csv": "text"}


def write_pages(app: Sphinx) -> None:
    """Write docs/api and docs/project. Files whose text has not changed keep their time, so Sphinx skips them."""
    pages = {
        "project/contributing.md": moved_page(ROOT / "CONTRIBUTING.md"),
        "project/changelog.md": moved_page(ROOT / "CHANGELOG.md"),
        "project/search.md": moved_page(DOCS / "search.md"),
        "project/examples.md": examples_page(),
        **api_pages(),
    }
    for folder in ("api", "project"):
        (DOCS / folder).mkdir(exist_ok=True)
        for old in (DOCS / folder).iterdir():
            if f"{folder}/{old.name}" not in pages:
                old.unlink()
    for name, text in pages.items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def moved_page(path: Path) -> str:
    """Return the text of a Markdown file with its relative links rewritten for docs/project."""

    def moved(link: re.Match[str]) -> str:
        name, anchor = link[1], link[2]
        target = (path.parent / name).resolve()
        return f"]({os.path.relpath(PAGES.get(target, target), DOCS / 'project')}{anchor})"

    return RELATIVE.sub(moved, path.read_text(encoding="utf-8"))


def examples_page() -> str:
    """Return the page that shows every file of examples/."""
    parts = ["# Examples", "", "The tests run each of these programs. Start them from the root of the repository.", ""]
    for name in EXAMPLES:
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        parts += [f"## {name}", "", f"```{LANGUAGES[name.partition('.')[2]]}", text.rstrip("\n"), "```", ""]
    return "\n".join(parts)


def api_pages() -> dict[str, str]:
    """Return one page for each package that defines public names, and an index of all public names."""
    packages: dict[str, list[str]] = {}
    for name in traincast.__all__:
        if not name.startswith("_"):
            packages.setdefault(getattr(traincast, name).__module__.split(".")[1], []).append(name)
    pages = {f"api/{package}.rst": package_page(package, names) for package, names in packages.items()}
    return {"api/index.rst": index_page(dict(sorted(packages.items()))), **pages}


def package_page(package: str, names: list[str]) -> str:
    """Return the page of one package: its docstring, its functions, then its classes."""
    title = f"traincast.{package}"
    parts = [title, "=" * len(title), "", f".. automodule:: {title}", "   :no-members:", ""]
    parts += [".. currentmodule:: traincast", ""]
    for name in sorted(names, key=lambda name: (inspect.isclass(getattr(traincast, name)), name)):
        value = getattr(traincast, name)
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        if kind == "data":  # the verbs of a group: one function each
            parts += [f".. py:data:: {name}", "", f"   {first_sentence(value)}", ""]
            verbs = [verb for verb in type(value).__dict__ if not verb.startswith("_")]
            parts += [line for verb in verbs for line in (f".. autofunction:: traincast.{name}.{verb}", "")]
            continue
        parts += [f".. auto{kind}:: {name}", *(["   :undoc-members:"] if isinstance(value, EnumType) else []), ""]
    return "\n".join(parts)


def index_page(packages: dict[str, list[str]]) -> str:
    """Return the page that lists every public name with the first sentence of its docstring."""
    parts = ["API", "===", "", "Import every name on this page from ``traincast``.", ""]
    parts += [".. toctree::", "   :hidden:", "", *(f"   {package}" for package in packages), ""]
    for package, names in packages.items():
        parts += [f"traincast.{package}", "-" * len(f"traincast.{package}"), ""]
        parts += [".. list-table::", "   :widths: 30 70", "   :width: 100%", ""]
        for name in names:
            parts += [f"   * - :obj:`~traincast.{name}`", f"     - {first_sentence(getattr(traincast, name))}"]
        parts.append("")
    return "\n".join(parts)


def first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]


def adapt_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the side bar to the first page, and point links to moved files at the pages that show them."""

    def moved(link: re.Match[str]) -> str:
        target = (DOCS / name).parent.joinpath(link[1]).resolve()
        return f"]({os.path.relpath(PAGES[target], (DOCS / name).parent)}{link[2]})" if target in PAGES else link[0]

    source[0] = RELATIVE.sub(moved, source[0])
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            source[0] += "\n".join(("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""))


class ConsoleLexer(RegexLexer):  # type: ignore[misc]
    """A command after ``$`` and its output. (The lexer of Pygments also takes ``#`` for a prompt.)"""

    name = "console"
    tokens: ClassVar = {"root": [(r"^\$ (?:[^\n]*\\\n)*[^\n]*\n", Generic.Prompt), (r"[^\n]*\n", Text)]}


def setup(app: Sphinx) -> None:
    """Register the steps above with Sphinx."""
    app.add_lexer("console", ConsoleLexer)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", adapt_source)
