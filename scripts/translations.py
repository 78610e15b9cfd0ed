"""Which Chinese pages lag behind the English pages that they translate.

    python scripts/translations.py           # a line for each page; exit code 0 also where some lag
    python scripts/translations.py --strict  # exit code 1 where one lags: before a release
    python scripts/translations.py --stamp docs/zh/faq.md     # after it was brought up to date by hand

A translation says on its first line which page it translates, and the SHA-256 of that page when it was translated:

    <!-- translates: docs/faq.md sha256:0123... -->

The pages of docs/zh/reference/ are made, not written: their sentences are in fsdp_lab/commands/reference/chinese.json,
and ``python -m fsdp_lab.commands.reference.reference_pages`` says which of them are missing.

That a page lags fails no test: whoever corrects an English sentence need not read Chinese, and a test that fails for
this would be silenced by stamping pages that nobody has translated. The tests print it; --strict is for releases.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "docs/zh"
MARKER = re.compile(r"<!-- translates: (?P<source>[\w./-]+\.md) sha256:(?P<digest>[0-9a-f]{64}) -->\n")


def translations(root: Path = ROOT) -> list[Path]:
    """Find every translated page: the Markdown files under ``docs/zh`` of the checkout ``root``, sorted."""
    return sorted((root / FOLDER).rglob("*.md"))


def digest(source: Path) -> str:
    """The SHA-256 (hex) of a page."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def lags(page: Path, root: Path = ROOT) -> bool:
    """Has the English page changed since ``page`` was translated? ValueError where the marker cannot tell."""
    found = MARKER.match(page.read_text(encoding="utf-8"))
    name = page.relative_to(root)
    if found is None:
        raise ValueError(f"{name}: the first line must be <!-- translates: PAGE.md sha256:64 HEX DIGITS -->")
    if not (source := root / found["source"]).is_file():
        raise ValueError(
            f"{name}: translates {found['source']}, which is not there; translate another page or delete this"
        )
    return digest(source) != found["digest"]


def stamp(page: Path, root: Path = ROOT) -> None:
    """Write today's digest of the English page into the marker. ValueError as `lags` has it."""
    lags(page, root)
    text = page.read_text(encoding="utf-8")
    found = MARKER.match(text)
    assert found is not None, "lags has looked"
    page.write_text(text.replace(found["digest"], digest(root / found["source"]), 1), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Print which pages lag. 1: one does, and ``--strict`` was given; 2: a marker is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a page lags")
    parser.add_argument("--stamp", metavar="PAGE", nargs="+", default=[], help="pages that are up to date now")
    options = parser.parse_args(argv)
    try:
        for name in options.stamp:
            stamp(_page(name))
        behind = {page: lags(page) for page in translations()}
    except ValueError as error:
        print(f"translations: {error}", file=sys.stderr)
        return 2
    for page, is_behind in behind.items():
        print(f"{'lags     ' if is_behind else 'current  '} {page.relative_to(ROOT)}")
    return int(options.strict and any(behind.values()))


def _page(name: str) -> Path:
    page = Path(name).resolve()
    if page not in translations():
        raise ValueError(f"--stamp {name}: no page of {FOLDER}")
    return page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
