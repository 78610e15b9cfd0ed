"""Files of results: what is read back must be a row, and is counted where it is not."""

from __future__ import annotations

from pathlib import Path

from experiments.faults.hostile.case import Case, Make
from experiments.faults.hostile.limited_process import ROOT

_ROWS = ROOT / "results" / "reference" / "fresh_weights" / "first_methods.jsonl"
_LINES: dict[str, tuple[bytes, str]] = {
    "cut off": (b'{"run_name": "x', "not valid JSON"),
    "NaN": (b'{"val_loss": NaN}', "NaN is not a JSON number"),
    "a key twice": (b'{"a": 1, "a": 2}', "appears twice"),
    "100,000 brackets": (b"[" * 100_000, "nested too deeply"),
    "a number of 5,000 digits": (b'{"val_loss": ' + b"9" * 5000 + b"}", "64 bits"),
    "not UTF-8": (b'{"run_name": "\xff"}', "utf-8"),
    "a list": (b"[1]", "not a JSON object"),
    "an object of nothing": (b"{}", "schema_version|missing"),
}


def _file(folder: Path, line: bytes) -> str:
    path = folder / "rows.jsonl"
    path.write_bytes(_ROWS.read_bytes() + line + b"\n")
    return str(path)


def _check(line: bytes) -> Make:
    return lambda folder: ["fsdp_lab.results", "check", _file(folder, line)]


_BROKEN = b'{"run_name": NaN, "x": ' + b"[" * 5000


def _show(folder: Path) -> list[str]:
    return ["fsdp_lab.results", "show", _file(folder, _BROKEN)]


def _migrate(folder: Path) -> list[str]:
    return ["fsdp_lab.results", "migrate", _file(folder, _BROKEN), "--out", str(folder / "new.jsonl")]


def _fairness(folder: Path) -> list[str]:
    return ["analysis.checks", _file(folder, _BROKEN)]


def _report(folder: Path) -> list[str]:
    return ["analysis.report", _file(folder, _BROKEN), "--out", str(folder / "report")]


CASES = [
    *(
        Case("results", f"{name}: check", _check(line), f"line [0-9]+: .*({says})")
        for name, (line, says) in _LINES.items()
    ),
    Case("results", "a broken line: show", _show, "left out", code=0),
    Case("results", "a broken line: migrate", _migrate, "left out"),
    Case("results", "a broken line: fairness", _fairness, "rows.jsonl"),
    Case("results", "a broken line: report", _report, "rows.jsonl"),
]
