"""The laws of all methods (`comm_compress.laws`), each with its outcome."""

from __future__ import annotations

import time
from collections.abc import Iterator

from comm_compress.laws import laws_for
from experiments.judge.subject.exceptions import said
from experiments.judge.subject.job import Fact, Job


def facts(job: Job) -> Iterator[Fact]:
    """A line before and a line after each law that concerns the method: the one before names what hangs."""
    for law in laws_for(job.make()):
        about = (law.__doc__ or "").strip().split("\n")[0].replace("`", "")
        yield {"kind": "begun", "name": law.__name__}
        start = time.perf_counter()
        broken = ""
        try:
            law(job.make)
        except Exception as error:  # an AssertionError says what the law expected; others are broken laws as well
            broken = str(error) if type(error) is AssertionError and str(error) else said(error, job.file)
        seconds = time.perf_counter() - start
        yield {
            "kind": "law",
            "name": law.__name__,
            "about": about,
            "holds": not broken,
            "message": broken,
            "seconds": seconds,
        }
