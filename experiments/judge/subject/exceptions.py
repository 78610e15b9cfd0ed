"""An exception of a stranger's code as one line of text."""

from __future__ import annotations

import traceback
from pathlib import Path


def said(error: BaseException, file: Path) -> str:
    """An exception in one line, with the last line of the method's own file that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    place = f" ({file.name}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        place = f" ({Path(error.filename or file).name}:{error.lineno})"
    return f"{type(error).__name__}: {error}{place}"
