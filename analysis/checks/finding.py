"""One thing that is wrong with rows or with a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from analysis.rows.comparing.arms import Arm

Severity = Literal["error", "warning"]
Concerns = Literal["all", "quality", "times", "bytes"]
QUALITY_AND_BYTES: tuple[Concerns, ...] = ("quality", "bytes")
"""What figures of quality against compression are about, and claims of it."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    ``check`` names the function that found it, ``subject`` the run, arm or comparison; ``what`` gives the numbers and
    ``advice`` says what to do. ``concerns`` says which figures must not be drawn from it, and ``arms`` which arms it is
    about (none: all)."""

    severity: Severity
    check: str
    subject: str
    what: str
    advice: str
    concerns: Concerns = "all"
    arms: tuple[Arm, ...] = ()

    @cached_property
    def meant(self) -> frozenset[Arm]:
        """``arms`` as a set: a finding about ten thousand arms is asked for each of them."""
        return frozenset(self.arms)
