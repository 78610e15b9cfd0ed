"""What documents name exists: files, modules, and the headings that links lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import comm_compress as cc
from comm_compress.registry import registered

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "comm_compress|fsdp_lab|experiments|analysis|examples|tests"
PATH = re.compile(rf"(?<![\w./-])(?:{PACKAGES}|docs|scripts|results/reference)/[\w./-]*\w")
MODULE = re.compile(rf"(?<![\w./-])(?:{PACKAGES})(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(
        path for path in (ROOT / "docs").rglob("*.md") if not re.match(r"\d", path.name)
    ),  # log: names of their day
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


def indexes(document: Path) -> Iterator[Path]:
    """The indexes that may lead to a document: of its own folder, and of those above."""
    for folder in document.parents:
        yield folder / "README.md"
        if folder == ROOT / "docs":
            return


def test_an_index_leads_to_every_document() -> None:
    links = {
        index: {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
        for index in (ROOT / "docs").rglob("README.md")
    }
    for document in sorted((ROOT / "docs").rglob("*.md")):
        above = [index for index in indexes(document) if index != document]
        assert document == ROOT / "docs" / "README.md" or any(document in links.get(index, ()) for index in above), (
            document
        )


def test_the_front_page_is_one() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", "docs/zh/README.md"])
def test_the_front_page_names_every_method(page: str) -> None:
    section = re.search(r"(?ms)^## (?:Methods|方法)\n(.+?)^## ", (ROOT / page).read_text())
    assert section is not None
    entries = {name: registered(name) for name in cc.available() if name != "none"}
    own = {name for name, entry in entries.items() if entry.config.__module__.startswith("comm_compress.")}
    assert own <= set(re.findall(r"`(\w+)`", section[1]))
    assert re.search(rf"\b{len(own)} (?:methods behind|种方法)", (ROOT / page).read_text())


def test_every_recipe_is_among_those_that_sweeps_md_lists() -> None:
    table = (ROOT / "docs/comparing/sweeps.md").read_text().split("### Recipes that are here")[1].split("\n## ")[0]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    there = {path.stem for path in (ROOT / "experiments/recipes").rglob("[!_]*.yaml")}
    assert sorted(listed) == sorted(there)
