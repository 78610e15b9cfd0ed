"""The report's page in Chromium, where there is one: nothing is cut off at any width, and the first figure answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from analysis.report.__main__ import main

ROWS = Path(__file__).resolve().parents[3] / "results/reference/fresh_weights/bar.jsonl"
NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed")

# What is seen is written as the page's title, which --dump-dom shows. In a figure's text, 9 CSS pixels can be read.
PROBE = """
const root = document.documentElement, seen = {};
const figure = document.querySelector("figure.front"), arms = [...figure.querySelectorAll("g.arm")];
const tip = figure.querySelector(".tip"), arm = arms.find((one) => one.dataset.family === "int8");
seen.width = [root.scrollWidth, window.innerWidth];
const inside = (one) => one.getBoundingClientRect().right <= root.clientWidth + 1 || one.closest("div.wide, pre");
seen.cut = [...document.querySelectorAll("h1, h2, h3, p, li, figure, figcaption, button")]
  .filter((one) => !inside(one)).map((one) => one.textContent.slice(0, 40));
seen.figure = figure.getBoundingClientRect().width;
seen.letters = Math.min(...[...figure.querySelectorAll("svg text")].filter((one) => one.getClientRects().length)
  .map((one) => one.getBoundingClientRect()).map((box) => Math.min(box.width, box.height)).filter((size) => size > 0));
seen.sticky = [...document.querySelectorAll("div.wide > table thead th")].map((th) => getComputedStyle(th).position);
arm.dispatchEvent(new PointerEvent("pointerenter"));
const box = tip.getBoundingClientRect();
seen.tip = [tip.hidden, tip.textContent, box.left >= 0 && box.right <= root.clientWidth + 1];
arm.dispatchEvent(new PointerEvent("pointerleave"));
seen.left = tip.hidden;
const off = () => arms.filter((one) => one.classList.contains("off")).map((one) => one.dataset.family);
arm.dispatchEvent(new MouseEvent("click", {bubbles: true}));
seen.alone = off();
arm.dispatchEvent(new MouseEvent("click", {bubbles: true}));
seen.again = off();
seen.families = arms.map((one) => one.dataset.family);
document.title = "SEEN" + encodeURIComponent(JSON.stringify(seen)) + "SEEN";
"""


@pytest.fixture(scope="module", params=["en", "zh"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with the probe at its end. The page runs no script but its own, so this copy drops that policy."""
    folder = tmp_path_factory.mktemp(request.param)
    try:
        assert main([str(ROWS), "--out", str(folder), "--formats", "svg", "--language", request.param]) == 0
    except SystemExit:
        pytest.skip("no font for Chinese")
    text, count = re.subn(
        r'<meta http-equiv="?Content-Security-Policy"?[^>]*>', "", (folder / "index.html").read_text()
    )
    assert count == 1
    probed = folder / "probed.html"
    probed.write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"))
    return probed


def seen(page: Path, width: int) -> Any:
    """What the probe saw in a window of ``width`` CSS pixels."""
    assert BROWSER is not None
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += [f"--user-data-dir={page.parent / 'browser'}", f"--window-size={width},1800", "--dump-dom", page.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60)
    found = re.search(r"SEEN(.*?)SEEN</title>", shown.stdout)
    assert found, shown.stderr[-2000:]
    return json.loads(unquote(found[1]))


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_its_window_and_the_figure_answers(page: Path, width: int) -> None:
    found = seen(page, width)
    assert found["width"] == [width, width], "the page scrolls sideways"
    assert not found["cut"]
    assert found["figure"] >= 0.6 * min(width, 1000)
    assert found["letters"] >= 5
    assert set(found["sticky"]) == {"sticky"}
    hidden, text, in_window = found["tip"]
    assert [hidden, in_window, found["left"]] == [False, True, True]
    assert "int8" in text
    assert set(found["alone"]) == set(found["families"]) - {"int8"}
    assert found["again"] == []
