"""One table of every method and its interesting settings: the conformance tests run over all of it."""

from __future__ import annotations

from typing import Any

from comm_compress import Compressor, available, make
from comm_compress.core.compressor import Codec
from tests.comm_compress import table_rows

TABLE: list[tuple[str, dict[str, Any]]] = [row for rows in table_rows.FAMILIES for row in rows]
# a method that someone's plugin registered comes in with its defaults
TABLE += [(name, {}) for name in available() if name not in {"none", *(name for name, _ in TABLE)}]
IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in config.items()) or 'default'}" for name, config in TABLE]


def build(name: str, config: dict[str, Any]) -> Compressor:
    """The compressor of one row."""
    compressor = make(name, config)
    assert compressor is not None
    return compressor


def codec(name: str, config: dict[str, Any]) -> Codec:
    """The same, of a method that encodes row by row; error feedback off."""
    compressor = build(name, {"error_feedback": False, **config})
    assert isinstance(compressor, Codec)
    return compressor
