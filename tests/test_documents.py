"""What documents name exists: files, modules, and the headings that links lead to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "comm_compress|fsdp_lab|experiments|analysis|examples|tests"
PATH = re.compile(rf"(?<![\w./-])(?:{PACKAGES}|docs|scripts|results/reference)/[\w./-]*\w")
MODULE = re.compile(rf"(?<![\w./-])(?:{PACKAGES})(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "findings").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    *sorted((ROOT / "docs" / "log").glob("[!0-9]*.md")),  # entries have the names of their day
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def exists(path: str) -> bool:
    """A file, a folder, or what several files' names begin with, as a command's ``--out`` takes it."""
    return (ROOT / path).exists() or any((ROOT / path).parent.glob(f"{Path(path).name}.*"))


def names_something(dotted: str) -> bool:
    """Is it a module, or a name that stands in the module it is in?"""
    parts = dotted.split(".")
    place = ROOT / parts[0]
    for number, part in enumerate(parts[1:], 1):
        if (place / part).is_dir():
            place = place / part
        elif (file := place / f"{part}.py").exists():
            return number + 1 == len(parts) or occurs(parts[number + 1], file)
        else:
            return occurs(part, place / "__init__.py")
    return True


def occurs(name: str, file: Path) -> bool:
    return file.exists() and re.search(rf"\b{name}\b", file.read_text()) is not None


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    titles = re.findall(r"(?m)^#+ (.+)$", document.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_paths_exist(document: Path) -> None:
    absent = {path for path in PATH.findall(document.read_text()) if not exists(path)}
    assert not absent


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_modules_exist(document: Path) -> None:
    absent = {name for name in MODULE.findall(document.read_text()) if not names_something(name)}
    assert not absent


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        if "://" not in link:
            name, _, heading = link.partition("#")
            target = document.parent / name if name else document
            assert target.exists(), link
            assert not heading or heading in anchors(target), link


@pytest.mark.parametrize("folder", ["docs", "docs/findings"])
def test_an_index_has_every_document(folder: str) -> None:
    index = (ROOT / folder / "README.md").read_text()
    absent = {path.name for path in (ROOT / folder).glob("*.md") if f"({path.name})" not in index} - {"README.md"}
    assert not absent


def test_the_front_page_is_one() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_index_of_the_log_has_every_entry() -> None:
    entries = (ROOT / "docs" / "log" / "README.md").read_text()
    assert all(f"({path.name})" in entries for path in (ROOT / "docs" / "log").glob("[!R]*.md"))
