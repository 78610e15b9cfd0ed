"""Where token shards are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(chosen: str | None) -> Path:
    """The folder of token shards: ``chosen``, or one in the user's cache. ValueError where the user has no home."""
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        raise ValueError("cache_dir: this user has no home folder; say where token shards are kept") from None
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "fsdp-comm-compress" / "tokens"
