"""The formats that figures are saved in, and the flag that names them. Needs no matplotlib, as no flag does."""

from __future__ import annotations

FORMATS = ("svg", "pdf", "png")


def formats_of(text: str) -> list[str]:
    """The formats of a ``--formats`` flag, in the order of `FORMATS`. ValueError for others, and for none."""
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    if not chosen or not set(chosen) <= set(FORMATS):
        raise ValueError(f"--formats: got {text!r}, wants some of {','.join(FORMATS)}")
    return [known for known in FORMATS if known in chosen]
