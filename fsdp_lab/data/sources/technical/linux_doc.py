"""The Linux kernel's documentation sources (GPL-2)."""

from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, members

PACKAGE = Package("apt", "linux-doc-6.1", "linux-doc-6.1_*_all.deb")


def extract(archive: Path) -> Iterator[Document]:
    """One document for each page of reStructuredText, titled by its path; translations are left out."""
    for name, content in members(archive, r".*/html/_sources/(?!translations/).*\.rst\.txt"):
        page = name.partition("/html/_sources/")[2].removesuffix(".rst.txt")
        if text := content.decode("utf-8", errors="replace").strip():
            yield Document(f"linux-{page}", page, text)
