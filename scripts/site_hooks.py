"""MkDocs' hooks: pages refer to files outside of ``docs/``, as one reads them in a checkout.

The front page, CONTRIBUTING, CHANGELOG and the figures and tables of ``results/reference/`` become files of the site,
and links to them are turned there. What else is linked (a folder, code, rows) is in a checkout only: such a link
becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Where files of the root lie on the site."""
FIGURES = "results/reference"
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
    return files


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
        if files.get_file_from_path(place) is None:
            return f"![{text}]()" if mark else text
        return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{heading})"

    return _LINK.sub(turned, markdown)
