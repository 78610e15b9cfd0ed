import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdp_lab.data.tokens.tokenizer import TextTokenizer, load_tokenizer

WriteArray = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return load_tokenizer()


@pytest.fixture
def write_array(tmp_path: Path) -> WriteArray:
    """Write rows as a JSON array, one row a line, gzip on request; returns the path."""

    def write(rows: Sequence[Any], name: str = "data.json", compress: bool = False) -> Path:
        content = ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if compress else content)
        return path

    return write


def rows(count: int, words: int = 40) -> list[dict[str, str]]:
    """Documents that all differ, of slightly different lengths."""
    return [
        {"id": str(i), "title": f"Title {i}", "text": " ".join(f"word{i * j % 97}" for j in range(words + i % 7))}
        for i in range(count)
    ]
