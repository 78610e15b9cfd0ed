"""The elements of one big JSON array, streamed, with the byte where a bad one lies.

The parser is ijson, fed by hand: that lets the pieces grow with a huge element (yajl scans an unfinished
string again with every piece, so fixed pieces cost quadratic time) and lets an error be located afterwards,
which ijson itself does not report.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson

from fsdp_lab.data.byte_stream import ByteStream

_PIECE_BYTES = 1 << 18


def array_elements(stream: ByteStream) -> Iterator[Any]:
    """Yield the elements of the JSON array in `stream` as Python objects; numbers are int or Decimal.

    Memory is bounded by a few times the largest element. Raises DataError with the byte of a syntax error.
    """
    elements, parser = _parser()
    size = _PIECE_BYTES
    while piece := stream.read(size):
        broken = None
        try:
            parser.send(piece)
        except ijson.JSONError as error:
            broken = error
        size = _PIECE_BYTES if elements else 2 * size
        yield from elements
        if broken:
            raise stream.error(_reason(broken), byte_of_element(stream.path)) from None
        del elements[:]
    try:
        parser.close()
    except ijson.JSONError as error:
        raise stream.error(f"the array is cut off: {_reason(error)}") from None


def byte_of_element(path: Path, number: int | None = None) -> int:
    """Offset of the last byte of element `number` (from 0), or of the first byte the parser refuses.

    Reads the file again, three times with ever finer pieces: only ever needed for an error message.
    """
    offset = 0
    for size in (_PIECE_BYTES, 512, 1):
        offset = _last_good_piece(path, offset, size, number)
    return offset


def _last_good_piece(path: Path, fine_from: int, size: int, number: int | None) -> int:
    """Start of the piece that completes element `number` or breaks; pieces have `size` bytes from `fine_from` on."""
    elements, parser = _parser()
    seen = 0
    with ByteStream(path) as stream:
        while True:
            start = stream.offset
            piece = stream.read(size if start >= fine_from else min(_PIECE_BYTES, fine_from - start))
            try:
                parser.send(piece)
            except ijson.JSONError:
                return start
            seen += len(elements)
            del elements[:]
            if not piece or (number is not None and seen > number):
                return start


def _parser() -> tuple[list[Any], Any]:
    elements = ijson.sendable_list()
    return elements, ijson.items_coro(elements, "item")


def _reason(error: ijson.JSONError) -> str:
    # yajl prints three lines, an excerpt with an arrow included, at times as the repr of bytes: keep the first.
    found = re.search(r"(?:parse|lexical) error: ([^\n\\]+)", str(error))
    return "broken JSON: " + (found[1].strip() if found else str(error))
