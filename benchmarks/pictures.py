"""Takes the pictures of pages that the documents show: ``python -m benchmarks.pictures [NAME...]``.

Each picture is a page that one command writes, in a window of Chromium. Beside ``NAME.png`` stands ``NAME.txt``: every
text that the page showed. A test opens the page again and compares, so a picture that shows other figures than the
program prints today is found.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "images"
CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS: Final = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

SPEED: Final = re.compile(r"^(time|per CPU second)\n.*\n", re.M)
"""Labels and values in which a search reports its own speed, which depends on the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: the command that writes its page, and the height of the window in pixels; it is 1,200 wide."""

    command: str
    height: int


PICTURES: Final[dict[str, Picture]] = {
    "forecast": Picture(
        command="traincast predict llama3-8b --cluster dgx-h100:4 --strategy dp=8,tp=4 --global-batch 256 "
        "--tokens 1e12",
        height=1180,
    ),
    "search": Picture(command="traincast search llama3-8b --cluster dgx-h100:4 --global-batch 256", height=1810),
    "schedule": Picture(
        command="traincast schedule examples/jobs.csv --nodes 2x8 --compare fifo,sjf,srtf,easy,tiresias", height=1800
    ),
}
"""The pictures by name."""


def main(names: list[str]) -> None:
    """Take the named pictures, or all."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        sys.exit("no Chromium here: install chromium or google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name in names or PICTURES:
            page = shown(browser, name)
            page.screenshot(path=str(FOLDER / f"{name}.png"))
            (FOLDER / f"{name}.txt").write_text(text_of(page), encoding="utf-8")
            page.context.close()
            print(f"{name}: {FOLDER / name}.png")
        browser.close()


def shown(browser: Any, name: str) -> Any:
    """Open the page of the picture ``name``, written by its command as the program is now."""
    picture = PICTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        words = shlex.split(picture.command)[1:]
        subprocess.run(
            [sys.executable, "-m", "traincast", *words, "--html", str(path)],
            check=True, capture_output=True, cwd=ROOT,
        )  # fmt: skip
        page = browser.new_page(viewport={"width": 1200, "height": picture.height}, color_scheme="light")
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
    return page


def text_of(page: Any) -> str:
    """Return every text that a page shows, one line each, without what differs from run to run."""
    text: str = page.evaluate("document.body.innerText")
    lines = (line.strip() for line in text.splitlines())
    return SPEED.sub("", "\n".join(line for line in lines if line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
