"""The elements of one big JSON array, streamed; an error names the byte where a bad element lies.

The parser is Python's own, as for JSON lines, so that both forms accept and refuse the same. It is given the text read
so far and, where an element is incomplete, once more with twice as much: doubling makes that linear in a huge element.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fsdp_lab.data.reading.byte_stream import ByteStream
from fsdp_lab.data.reading.json_decoder import DECODER, LARGEST, too_large, unusable
from fsdp_lab.files.errors import DataError

_CHUNK_BYTES = 1 << 18
_SPACE = re.compile(r"[ \t\r\n]*")
_WIDEST_TOKEN = 12  # characters: an escaped surrogate pair; an error as near the end as that may be a cut


class Element(NamedTuple):
    """One element of the array, and the byte of the file where it begins."""

    value: Any
    start: int


def array_elements(stream: ByteStream) -> Iterator[Element]:
    """Yields the elements of the JSON array in `stream`.

    Memory is bounded by a few times the largest element, which may have `LARGEST` characters. Raises DataError with the
    byte of what is no JSON, nested too deeply, or a number too long.
    """
    text = _Window(stream)
    text.next_is("[")
    ended = text.next_is("]")
    while not ended:
        yield text.element()
        if not text.next_is(","):
            if not text.next_is("]"):
                reason = 'broken JSON: wants "," or "]" after' if text.character() else "the array is cut off after"
                raise text.error(f"{reason} an element of the array")
            ended = True
    if text.character():
        raise text.error("broken JSON: something follows the end of the array")


class _Window:
    """The text that has been read from the stream and not yet been parsed."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0  # of _text: what is before has been used
        self._byte = stream.offset  # of the file: where _at is
        self._ended = False

    def character(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            self._use(_end_of_space(self._text, self._at))
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read(_CHUNK_BYTES)

    def next_is(self, wanted: str) -> bool:
        """Whether the next character is the one `wanted`; if so, it is consumed."""
        is_next = self.character() == wanted
        if is_next:
            self._use(self._at + 1)
        return is_next

    def element(self) -> Element:
        """Parses the element that begins here, reading as much of the stream as it needs."""
        self.character()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # else it may be the beginning of a longer number
                    break
            except json.JSONDecodeError as error:
                if self._ended and _is_cut(error):
                    raise self.error(f"the array is cut off: {error.msg}", len(self._text)) from None
                if self._ended or not _may_go_on(error):
                    raise self.error(f"broken JSON: {error.msg}", error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self.error(f"an element of the array {unusable(error)}; it begins") from None
            if len(self._text) - self._at > LARGEST:
                raise self.error(f"an element of the array {too_large()}; it begins")
            self._read(max(_CHUNK_BYTES, len(self._text) - self._at))
        start = self._byte
        self._use(end)
        return Element(value, start)

    def error(self, reason: str, at: int | None = None) -> DataError:
        """A DataError that names the byte of the character `at` in the text (default: the current one)."""
        return self._stream.error(reason, self._byte + len(self._text[self._at : at].encode()) if at else self._byte)

    def _use(self, end: int) -> None:
        self._byte += len(self._text[self._at : end].encode())
        self._at = end

    def _read(self, size: int) -> None:
        chunk = self._stream.read(size)
        self._ended = len(chunk) < size
        waiting = len(self._decoder.getstate()[0])  # bytes of a character that the last chunk cut
        try:
            self._text = self._text[self._at :] + self._decoder.decode(chunk, self._ended)
        except UnicodeDecodeError as error:
            at = self._stream.offset - len(chunk) - waiting + error.start
            raise self._stream.error(f"is not UTF-8: {error.reason}", at) from None
        self._at = 0


def _end_of_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    assert space is not None, "the pattern also matches the empty text"
    return space.end()


def _may_go_on(error: json.JSONDecodeError) -> bool:
    """Whether the error could vanish once more text has been read."""
    return _is_cut(error) or len(error.doc) - error.pos < _WIDEST_TOKEN


def _is_cut(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string") or not error.doc[error.pos :].strip()
