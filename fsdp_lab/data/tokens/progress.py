"""The progress of tokenising: a bar on a terminal, else a line of text every ten seconds, or nothing if not wanted."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from tqdm import tqdm

_LINE_SECONDS = 10.0


class Progress:
    """Counts the bytes read of the data file and the tokens made of them, and shows both on stderr."""

    def __init__(self, name: str, total_bytes: int, *, shown: bool) -> None:
        self.num_tokens = 0
        self._name, self._total, self._shown = name, total_bytes, shown
        self._bytes = 0
        self._first_bytes = 0
        self._start = self._last_line = time.monotonic()
        self._bar = _bar(name, total_bytes) if shown and sys.stderr.isatty() else None

    def say(self, text: str) -> None:
        """Writes one line, above the bar if there is one."""
        if self._shown:
            tqdm.write(text, file=sys.stderr)

    def resume_from(self, file_bytes: int) -> None:
        """Says how many bytes an earlier run had done: the speed is measured from there."""
        self._bytes = self._first_bytes = file_bytes
        if self._bar is not None:
            self._bar.update(file_bytes)

    def update(self, file_bytes: int, new_tokens: int) -> None:
        """Says that `file_bytes` of the file have been read in total, and that `new_tokens` tokens were added."""
        file_bytes = max(file_bytes, self._bytes)
        self.num_tokens += new_tokens
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.num_tokens / 1e6:.1f}M tokens", refresh=False)
            self._bar.update(file_bytes - self._bytes)
        self._bytes = file_bytes
        if self._bar is None and time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            self.say(f"tokenising {self._name}: {100 * file_bytes / self._total:.0f} %, {self.rate()}")

    def rate(self) -> str:
        """The speed and the number of tokens so far, as text for a log line."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        done = self._bytes - self._first_bytes
        return f"{done / 1e6 / seconds:.1f} MB/s of the file, {self.num_tokens / 1e6:.2f}M tokens"

    def close(self) -> None:
        """Removes the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()


def _bar(name: str, total_bytes: int) -> tqdm[NoReturn]:
    # only the type stubs of tqdm know a type argument: at run time the class takes none
    return tqdm(
        total=total_bytes, unit="B", unit_scale=True, desc=f"tokenising {name}", leave=False, dynamic_ncols=True
    )
