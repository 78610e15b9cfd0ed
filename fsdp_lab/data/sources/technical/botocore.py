"""Descriptions of cloud services out of botocore's API models (Apache-2.0)."""

import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.packages import Package, members

PACKAGE = Package(
    "pypi",
    "botocore",
    "botocore-1.44.5-py3-none-any.whl",
    "1.44.5",
    "8f16a56d1dff125dd65322ae021efa7ba5195a6db5102b96862566055b748921",
)


def extract(archive: Path) -> Iterator[Document]:
    """One document for each service and version: its descriptions, one on each line; none comes twice."""
    seen: set[str] = set()
    for name, content in members(archive, r"botocore/data/.*/service-2\.json\.gz"):
        service, version = name.split("/")[2:4]
        texts = [_plain(text) for text in _descriptions(json.loads(gzip.decompress(content)))]
        fresh = [text for text in dict.fromkeys(texts) if text and text not in seen]
        seen.update(fresh)
        if fresh:
            yield Document(f"botocore-{service}-{version}", service, "\n".join(fresh))


def _descriptions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _descriptions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _descriptions(value)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text))).strip()
