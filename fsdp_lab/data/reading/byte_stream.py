"""A plain or gzip-compressed file as one stream of bytes, which counts how much of it has been read."""

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self, cast

from fsdp_lab.files.errors import DataError

_BUFFER_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ByteStream:
    """Bytes of `path`, decompressed if the content (not the name) is gzip, without a UTF-8 byte order mark.

    `offset` counts the decompressed bytes handed out, `file_position` the bytes of the file itself.
    Raises DataError if the file is missing, a folder or unreadable, and when its gzip data is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._raw = _open(path)
        self.compressed = self._raw.read(2) == _GZIP_MAGIC
        self._raw.seek(0)
        unzipped = gzip.GzipFile(fileobj=self._raw) if self.compressed else self._raw
        self._file = io.BufferedReader(cast(io.RawIOBase, unzipped), _BUFFER_BYTES)
        if self._guard(lambda: self._file.peek(3)[:3]) == _BYTE_ORDER_MARK:
            self.read(3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end of the file."""
        return self._advance(self._guard(lambda: self._file.read(size)))

    def readline(self, limit: int = -1) -> bytes:
        """The next line with its newline, or its first `limit` bytes; empty at the end of the file."""
        return self._advance(self._guard(lambda: self._file.readline(limit)))

    @property
    def file_position(self) -> int:
        """Bytes of the file itself consumed so far (compressed ones for gzip)."""
        return self._raw.tell()

    def error(self, reason: str, offset: int | None = None) -> DataError:
        """A DataError that names this file, the byte (`offset`, default the current one) and the reason."""
        unit = "decompressed byte" if self.compressed else "byte"
        return DataError(f"{self.path}: {reason} ({unit} {self.offset if offset is None else offset:,})")

    def _advance(self, content: bytes) -> bytes:
        self.offset += len(content)
        return content

    def _guard(self, action: Callable[[], bytes]) -> bytes:
        try:
            return action()
        except EOFError:
            raise self.error("the gzip data ends too early; the file is cut off, fetch it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self.error(f"damaged gzip data, fetch the file again: {error}") from None
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> BinaryIO:
    if path.is_dir():
        raise DataError(f"{path} is a folder; give one JSON or JSON-lines file (--data_path)")
    try:
        return path.open("rb", buffering=_BUFFER_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check --data_path or --data_mix") from None
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from None
