"""The files ``gpu_day.json`` and ``gpu_day.md``: what became of every stage, for the next call and for a reader."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu_day.table import Stage
from fsdp_lab.files.atomic import write_bytes, write_json
from fsdp_lab.run.environment import environment
from fsdp_lab.settings.reading.strict import load_json

NAME = "gpu_day.json"
PAGE = "gpu_day.md"
NOT_RUN = "not run"
_PAGE_BYTES = 200_000  # of one stage's own page


class Index:
    """What is known of all stages. ``rehearsal``: on the CPU, in small sizes; its figures mean nothing."""

    def __init__(self, folder: Path, stages: Sequence[Stage], rehearsal: bool) -> None:
        """Read what earlier calls left in ``folder``. ValueError where it is not such an index, or of another kind."""
        self._folder, self._stages = folder, stages
        self.state: dict[str, Any] = {"rehearsal": rehearsal, "stages": []}
        if (folder / NAME).exists():
            self.state = _read(folder / NAME, rehearsal)
        known = {entry["name"]: entry for entry in self.state["stages"]}
        self.entries: dict[str, dict[str, Any]] = {
            stage.name: known.get(stage.name) or _fresh(stage) for stage in stages
        }

    def note(self, stage: Stage, **values: Any) -> None:
        """Set what is known of a stage, and write both files."""
        self.entries[stage.name] |= values
        self.write()

    def forget(self, stage: Stage) -> None:
        """As if the stage had not been run."""
        self.entries[stage.name] = _fresh(stage)

    def write(self) -> None:
        """Replace both files by what is known now."""
        self.state |= environment() | {"driver": None if self.state["rehearsal"] else _driver()}
        self.state["stages"] = list(self.entries.values())
        write_json(self._folder / NAME, self.state)
        write_bytes(self._folder / PAGE, self._page().encode())

    def in_turn(self, wanted: Sequence[str]) -> list[Stage]:
        """The ``wanted`` stages that did not end well, most valuable first; those not tried yet come before others."""
        todo = [s for s in self._stages if s.name in wanted and self.entries[s.name]["state"] != "ok"]
        return sorted(todo, key=lambda stage: self.entries[stage.name]["tries"] > 0)

    def _page(self) -> str:
        hardware = self.state["hardware"]
        device = self.state["driver"] or ", ".join(hardware["gpus"]) or hardware["cpu"]
        if self.state["rehearsal"]:
            device = f"{hardware['cpu']}: a rehearsal on the CPU, in small sizes; its figures mean nothing"
        versions = ", ".join(f"{name} {version}" for name, version in self.state["versions"].items())
        changed = " with changes" if self.state["git_dirty"] else ""
        lines = ["# A day with a GPU", "", f"{device}. {versions}. Commit {self.state['git_commit']}{changed}.", ""]
        lines += ["| stage | what | state | seconds | expected | why, and what is missing |"]
        lines += ["|---|---|---|---:|---:|---|"]
        lines += [_line(entry) for entry in self.entries.values()]
        for entry in self.entries.values():
            if entry["state"] != NOT_RUN:
                lines += ["", f"## {entry['name']}: {entry['state']}", "", *_said(entry)]
        return "\n".join(lines) + "\n"


def page_of(stage: Stage, folder: Path) -> str | None:
    """The stage's own page in Markdown, if it has one and has come to write it; its headings one level deeper."""
    if stage.page is None or not (folder / stage.page).is_file():
        return None
    text = (folder / stage.page).read_text(encoding="utf-8", errors="replace")[:_PAGE_BYTES]
    return "\n".join(f"##{line}" if line.startswith("#") else line for line in text.splitlines())


def _driver() -> str | None:
    """What NVIDIA's driver says of each card: name, driver, memory, highest clock, power limit; None without one."""
    asked = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(done.stdout.split("\n")).strip("; ")


def _fresh(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "about": stage.about,
        "state": NOT_RUN,
        "tries": 0,
        "seconds": 0.0,
        "estimate_s": stage.estimate_s,
        "why": None,
        "file": None,
        "left_out": [],
        "commands": [],
        "last_lines": [],
        "page": None,
    }


def _read(path: Path, rehearsal: bool) -> dict[str, Any]:
    try:
        state: dict[str, Any] = load_json(path.read_bytes())
        is_rehearsal = bool(state["rehearsal"])
        assert all(isinstance(entry["name"], str) for entry in state["stages"])
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"out: {path} is no index of such a day ({error}); give another folder") from None
    if is_rehearsal != rehearsal:
        kinds = ("a rehearsal", "a day with a GPU")
        there, asked = kinds if is_rehearsal else kinds[::-1]
        raise ValueError(f"out: {path.parent} holds {there}, and this is {asked}; give another folder")
    return state


def _line(entry: dict[str, Any]) -> str:
    reasons = [*filter(None, [entry["why"]]), *(f"{name} was too large to keep" for name in entry["left_out"])]
    seconds = f"{entry['seconds']:.0f}" if entry["tries"] else ""
    why = "; ".join(reasons).replace("|", "\\|")
    return f"| {entry['name']} | {entry['about']} | {entry['state']} | {seconds} | {entry['estimate_s']} | {why} |"


def _said(entry: dict[str, Any]) -> list[str]:
    if entry["page"] is not None and entry["state"] == "ok":
        return [entry["page"]]
    last = ["The last lines that it printed:", "", *(f"    {line}" for line in entry["last_lines"])]
    return last if entry["page"] is None else [entry["page"], "", *last]
