"""A browser for the tests of pages: the Chromium of this machine, started once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pictures import ARGUMENTS, CHROMIUM


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The browser. Tests that need it are skipped where there is none. Its event loop must not outlive this package."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install chromium or google-chrome to test the pages in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@dataclass(kw_only=True)
class Opened:
    """A page in the browser; ``problems`` has what went to the console, ``requests`` what it asked the network for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        """Elements that a selector finds."""
        number: int = self.page.locator(selector).count()
        return number

    def texts(self, selector: str) -> list[str]:
        """Their texts."""
        found: list[str] = self.page.locator(selector).all_text_contents()
        return found

    def tip_at(self, selector: str, *, part: tuple[float, float] = (0.5, 0.5)) -> str:
        """What the tooltip says with the pointer at ``part`` of the first element that is found."""
        node = self.page.locator(selector).first
        node.scroll_into_view_if_needed()
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )  # scrolled
        box = node.bounding_box()
        self.page.mouse.move(box["x"] + part[0] * box["width"], box["y"] + part[1] * box["height"])
        tip = self.page.locator("#tip")
        tip.wait_for(state="visible", timeout=2000)
        said: str = tip.inner_text()
        return said

    def inked(self, selector: str) -> int:
        """Number of colours on a canvas, transparent left out."""
        script = """(canvas) => {
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
          for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
          return seen.size;
        }"""  # noqa: E501
        number: int = self.page.locator(selector).first.evaluate(script)
        return number

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return wide


def open_page(browser: Any, path: Path, *, width: int = 1400, dark: bool = False) -> Opened:
    """Open a file in a window of its own; below 500 pixels it is a phone."""
    phone = width < 500
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light",
        has_touch=phone, is_mobile=phone, permissions=["clipboard-read", "clipboard-write"],
    )  # fmt: skip
    made = Opened(page=context.new_page())
    made.page.on("console", lambda message: made.problems.append(message.text))
    made.page.on("pageerror", lambda error: made.problems.append(str(error)))
    made.page.on("request", lambda request: made.requests.append(request.url))
    made.page.goto(path.as_uri())
    return made


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens files in windows of their own, which the test's end closes."""
    pages: list[Opened] = []

    def open_one(path: Path, *, width: int = 1400, dark: bool = False) -> Opened:
        pages.append(open_page(browser, path, width=width, dark=dark))
        return pages[-1]

    yield open_one
    for made in pages:
        made.page.context.close()


@pytest.fixture(scope="module")
def shown(browser: Any, written: tuple[Path, Any]) -> Iterator[Opened]:
    """The page that the test module has ``written``, on a desk, for tests that leave it as it is."""
    made = open_page(browser, written[0])
    yield made
    made.page.context.close()
