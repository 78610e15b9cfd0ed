"""Numbers with units, as the summaries print them."""

from __future__ import annotations


def in_bytes(count: float) -> str:
    """A count of bytes with the largest unit that fits, in powers of 1,000: ``2.7 MB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.2f} GB"
