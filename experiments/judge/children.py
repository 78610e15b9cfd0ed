"""Processes that run a stranger's code: started, waited for so long and no longer, and read.

A process that has not ended in time is killed with all that it started; what it had written by then is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from experiments.runs.processes import Process, dying_with_this_process, end, leaving_tidily

ROOT = Path(__file__).resolve().parents[2]
_POLL_S, _GRACE_S = 0.05, 1.0
Fact = dict[str, Any]


def environment(first: Sequence[Path] = ()) -> dict[str, str]:
    """This process's environment with ``first`` and the checkout on Python's path."""
    paths = [*map(str, first), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def start(command: Sequence[str], log: IO[bytes], **how: Any) -> Process:
    """Start a program as leader of a group of its own; what it prints goes to ``log``."""
    how = {"env": environment(), **how}
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=dying_with_this_process(),
        **how,
    )


def wait(processes: Sequence[Process], limit_s: float) -> bool:
    """Wait until all have ended; False when that took longer, and they were killed."""
    deadline = time.monotonic() + limit_s
    try:
        while any(process.poll() is None for process in processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True
    finally:
        end([process for process in processes if process.poll() is None], _GRACE_S)


def run_part(
    part: str, file: Path, method: str, folder: Path, limit_s: float, options: Mapping[str, Any] | None = None
) -> list[Fact]:
    """The facts of one part (`experiments.judge.stage`); the last is of kind ``late`` where it did not end in time,
    and ``raised`` where it broke."""
    out, words = folder / f"{part}.jsonl", json.dumps(dict(options or {}))
    out.write_text("")
    with leaving_tidily(), (folder / f"{part}.log").open("wb") as log:
        process = start(["-m", "experiments.judge.stage", part, str(file), method, str(out), words], log)
        in_time = wait([process], limit_s)
    facts = facts_in(out)
    if not in_time:
        begun = [fact["name"] for fact in facts if fact["kind"] == "begun"]
        where = f"{begun[-1]} " if begun and not _is_done(facts, begun[-1]) else ""
        return [*facts, {"kind": "late", "why": f"{where}had not ended after {limit_s:g} s, and was stopped"}]
    if process.returncode and not any(fact["kind"] == "raised" for fact in facts):
        said = f"its process ended with exit code {process.returncode}; {folder / f'{part}.log'} has what it printed"
        return [*facts, {"kind": "raised", "why": said}]
    return facts


def run_ranks(file: Path, method: str, folder: Path, world: int, limit_s: float) -> list[list[Fact]]:
    """The facts of ``world`` ranks, each a process that meets the others over gloo in ``folder``."""
    (folder / "store").unlink(missing_ok=True)
    outs = [folder / f"rank{rank}.jsonl" for rank in range(world)]
    processes: list[Process] = []
    with (folder / "ranks.log").open("ab") as log:
        try:
            for rank, out in enumerate(outs):
                out.write_text("")
                words = json.dumps({"rank": rank, "folder": str(folder)})
                command = ["-m", "experiments.judge.stage", "rank", str(file), method, str(out), words]
                processes.append(start(command, log))
            in_time = wait(processes, limit_s)
        finally:
            end(processes, _GRACE_S)
    facts = [facts_in(out) for out in outs]
    late: Fact = {"kind": "raised", "why": f"a collective on two real ranks had not ended after {limit_s:g} s"}
    return facts if in_time else [[*of_rank, late] for of_rank in facts]


def facts_in(path: Path) -> list[Fact]:
    """The facts in a file; a line that was cut off is left out."""
    facts = []
    for line in path.read_text().splitlines():
        try:
            facts.append(json.loads(line))
        except ValueError:
            continue
    return facts


def _is_done(facts: Sequence[Fact], name: str) -> bool:
    return any(fact["kind"] == "law" and fact["name"] == name for fact in facts)
