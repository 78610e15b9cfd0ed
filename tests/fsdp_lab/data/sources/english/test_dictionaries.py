"""Dictionaries in dictd's format, read by their index."""

import base64
import gzip
from pathlib import Path

from fsdp_lab.data.reading.documents import Document
from fsdp_lab.data.sources.english import dictionaries
from tests.fsdp_lab.data.sources.archives import wheel


def test_dictionaries_follow_the_index(tmp_path: Path) -> None:
    def digits(value: int) -> str:
        raw = base64.b64encode((value << 2).to_bytes(3, "big")).decode()  # 4 digits of 6 bits, value in the first 22
        return {0: "A", 5: "F", 70: "BG", 75: "BL"}.get(value, raw)

    text = b"intro" + b"x" * 65 + b"Apple\n   A fruit.\n"
    index = "".join(
        f"{word}\t{digits(start)}\t{length}\n"
        for word, start, length in [("00-database-info", 0, "F"), ("apple", 70, "S"), ("apples", 70, "S")]
    )
    files = {"u/gcide.dict.dz": gzip.compress(text), "u/gcide.index": index.encode()}
    path = wheel(tmp_path, files, "dict-gcide_1_all.whl")
    assert list(dictionaries.extract(path)) == [Document("gcide-70", "apple", "Apple\nA fruit.")]
