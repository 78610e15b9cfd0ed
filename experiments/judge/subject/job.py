"""What each part of a judgement is given, and the form of what it finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import comm_compress as cc
from comm_compress.wrappers.error_feedback import ErrorFeedback
from experiments.judge.subject.channels import Library
from experiments.judge.subject.loading import Loaded

Fact = dict[str, Any]
WORLD = 2  # ranks, where nothing else is said: also of the trainings that methods are compared by


@dataclass(frozen=True)
class Job:
    """One method of one file. ``library``: what ours and torch's functions were before the file was imported."""

    file: Path
    method: str
    loaded: Loaded
    library: Library
    options: dict[str, Any]

    def make(self) -> cc.Compressor:
        """The method, built anew. ValueError for settings that it refuses."""
        made = cc.make(self.method)
        assert made is not None
        return made

    def with_method(self, method: str) -> Job:
        """The same job with another label."""
        return replace(self, method=method)

    def bare(self) -> cc.Compressor:
        """The method, built anew, beneath its error feedback."""
        made = self.make()
        return made.inner if isinstance(made, ErrorFeedback) else made


def check(name: str, about: str, broken: str) -> Fact:
    """The outcome of one check: ``broken`` says what is wrong, and is empty when nothing is."""
    return {"kind": "check", "name": name, "about": about, "holds": not broken, "message": broken}
