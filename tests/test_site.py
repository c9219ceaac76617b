"""The documentation site: it builds without warnings, needs no network, and all of its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import traincast
from tests.documents import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does, into a new folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "doctrees")]
    run = subprocess.run(
        [*command, "docs", str(folder / "html")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return folder / "html"


@pytest.mark.long(guard="test_links.py::test_every_relative_link_leads_to_a_file_and_a_heading")
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|link|iframe)[^>]* (?:src|href)=\"(?:https?:)?//[^\"]*", text) == [], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text) == [], style


@pytest.mark.long(guard="test_links.py::test_every_relative_link_leads_to_a_file_and_a_heading")
def test_links_between_pages_lead_to_a_page_and_a_place(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    places = {page: set(re.findall(r" id=\"([^\"]+)\"", text)) for page, text in pages.items()}
    wrong = []
    for page, text in pages.items():
        for link in re.findall(r"<a [^>]*href=\"([^\"]+)\"", text):
            path, _, place = unquote(unescape(link)).partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"\w+:", path):
                continue
            if not target.exists() or (place and target in places and unescape(place) not in places[target]):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert wrong == []


@pytest.mark.long(guard="test_public.py::test_every_public_name_can_be_had_and_is_documented")
def test_every_public_name_has_an_entry(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    missing = [name for name in traincast.__all__ if name != "__version__" and f'id="traincast.{name}"' not in text]
    assert missing == []


@pytest.mark.long(guard="test_examples.py::test_every_example_is_short_and_tested_here")
def test_every_example_is_shown(site: Path) -> None:
    page = (site / "project" / "examples.html").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert len(files) >= 8
    assert [name for name in files if f"<h2>{name}" not in page] == []
