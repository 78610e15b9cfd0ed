"""Python programs: SymPy's source code (BSD-3-Clause)."""

from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, members

PACKAGE = Package(
    "pypi",
    "sympy",
    "sympy-1.14.0-py3-none-any.whl",
    "1.14.0",
    "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each module, titled by its path; tests, which repeat themselves, are left out."""
    for name, content in members(archive, r"sympy/(?!(.*/)?tests/).*\.py"):
        if text := content.decode("utf-8", errors="replace").strip():
            yield Document(f"sympy-{name}", name, text)
