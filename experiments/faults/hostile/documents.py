"""Corpora: JSON arrays, JSON lines, gzip."""

from __future__ import annotations

import gzip
from pathlib import Path

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.limited_process import trained

_GOOD = b'{"id": "1", "title": "t", "text": "good"}'
_TEXTS: dict[str, tuple[bytes, str]] = {
    "array: a number of 100,000 digits": (b"[" + _GOOD + b', {"text": "x", "y": ' + b"9" * 100_000 + b"}]", "digits"),
    "array: 80,000 brackets": (b'[{"text": "x", "y": ' + b"[" * 80_000 + b"]" * 80_000 + b"}]", "nested too deeply"),
    "array: half a surrogate pair": (b'[{"text": "\\ud800"}]', "surrogates not allowed"),
    "array: cut off": (b"[" + _GOOD + b', {"text": "ab', "the array is cut off"),
    "array: a number among documents": (b"[" + _GOOD + b", 17]", "is a JSON number, not an object"),
    "array: a text that is null": (b'[{"text": null}]', 'needs a string "text", found null'),
    "lines: a number of 5,000 digits": (b'{"text": "x", "y": ' + b"9" * 5000 + b"}", "digits"),
    "lines: 200,000 brackets": (b'{"y": ' + b"[" * 200_000, "nested too deeply"),
    "lines: NaN": (b'{"text": "x", "y": NaN}', "NaN is not JSON"),
    "lines: not UTF-8": (_GOOD + b'\n{"text": "\xff"}', "is not UTF-8"),
    "UTF-16": ("[]".encode("utf-16"), "expected a JSON array"),
    "an empty file": (b"", "the file is empty"),
    "gzip: cut off": (gzip.compress(b"[" + _GOOD * 50 + b"]")[:-20], "gzip data ends too early"),
}


def _train(content: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "text.json").write_bytes(content)
        return trained(folder / "out", "--data_path", str(folder / "text.json"))

    return make


def _bomb(folder: Path) -> list[str]:
    with gzip.open(folder / "bomb.gz", "wb", 1) as file:  # 3 MB that become 600
        file.write(b'[{"text": "')
        for _ in range(600):
            file.write(b"a" * (1 << 20))
    return trained(folder / "out", "--data_path", str(folder / "bomb.gz"))


CASES = [
    *(Case("corpora", name, _train(content), says) for name, (content, says) in _TEXTS.items()),
    Case("corpora", "gzip: a document of 600 MB in 3 MB", _bomb, "split that document"),
]
