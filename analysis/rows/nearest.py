"""What a user who mistyped a name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A question for the user, ``; did you mean 'none'?``, or nothing where no known name is near."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
