"""Packages that tests make for themselves."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package

WHEEL = Package("pypi", "thing", "thing-1-py3-none-any.whl", "1")


def wheel(folder: Path, files: dict[str, bytes], name: str = WHEEL.file) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def extract_twice(archive: Path) -> Iterator[Document]:
    yield Document("1", "A", "one  text")
    yield Document("2", "B", "One text\n")
    yield Document("3", "B", "another")
