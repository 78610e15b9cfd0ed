"""MkDocs' hooks: pages refer to files outside of ``docs/``, as one reads them in a checkout.

The front page, CONTRIBUTING, CHANGELOG and the figures and tables of ``results/reference/`` become files of the site,
and links to them are turned there. The rows of the front page's figure become a report, made anew by every build, and
links to them lead to it. What else is linked (a folder, code, other rows) is in a checkout only: such a link becomes
its text.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import posixpath
import re
import sys
import tempfile
from pathlib import Path
from typing import Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Where files of the root lie on the site."""
FIGURES = "results/reference"
ROWS = "results/reference/fresh_weights/bar.jsonl"
CALIBRATION = "results/reference/links/calibration.json"
REPORTS: dict[Literal["en", "zh"], str] = {"en": "results/index.html", "zh": "results/zh/index.html"}
"""Where the report of ``ROWS`` lies on the site, in each language."""
_LOG = logging.getLogger("mkdocs.hooks.site")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of ``docs/``. ``docs/README.md`` is an index among pages here, not the front page."""
    index = files.get_file_from_path("README.md")
    assert index is not None
    index.dest_uri = "documents/index.html"
    for source, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / FIGURES).rglob("*")):
        if path.suffix in (".png", ".md"):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for language, place in REPORTS.items():
        if (page := report(language)) is not None:
            files.append(File.generated(config, place, content=page))
    return files


@functools.cache
def report(language: Literal["en", "zh"]) -> str | None:
    """The report of ``ROWS`` as one HTML page; None, and a word in the log, where no font has Chinese letters.

    ``mkdocs serve`` asks for it at every change of a page, and gets the one that it made when it started.
    """
    sys.path.insert(0, str(ROOT))  # mkdocs itself does not import from the checkout
    try:
        from analysis.figures.drawing.style import Style
        from analysis.report.__main__ import main
    finally:
        sys.path.remove(str(ROOT))
    try:
        Style(language=language).parameters()
    except ValueError as error:
        _LOG.info("no report in %r: %s", language, error)
        return None
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main([ROWS, "--calibration", CALIBRATION, "--language", language, "--formats", "svg", "--out", folder])
        return (Path(folder) / "index.html").read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead out of ``docs/`` to where the file is on the site."""
    here = page.file.src_uri
    own = {place: source for source, place in PAGES.items()}
    in_checkout = own.get(here, here if here.startswith(FIGURES) else f"docs/{here}")

    def turned(link: re.Match[str]) -> str:
        mark, text, target, heading = link[1], link[2], link[3], link[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(in_checkout), target))
        place = PAGES.get(meant, meant.removeprefix("docs/"))
        if meant == ROWS:
            place = REPORTS["zh" if here.startswith("zh/") else "en"]
        if files.get_file_from_path(place) is None:
            return f"![{text}]()" if mark else text
        return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{heading})"

    return _LINK.sub(turned, markdown)
