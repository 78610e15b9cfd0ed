"""The table of hostile cases: some of them for real, and what becomes of a promise that is broken."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.faults.hostile import __main__ as hostile, cases
from experiments.faults.hostile.case import Case
from experiments.faults.hostile.limited_process import ROOT, run_limited

CHEAP = (  # those whose commands need no torch
    "a seed of 400 digits",
    "60,000 brackets as a method's settings",
    "aliases that stand for 10 billion values",
    "!!bool x",
    "a Python object",
    "a number of 5,000 digits: check",
)


def case(name: str) -> Case:
    return next(case for case in cases.CASES if case.name == name)


@pytest.mark.parametrize("name", CHEAP)
def test_cheap_cases_keep_their_promise(name: str) -> None:
    seen = hostile.tried(case(name))
    assert seen.kept, seen


def test_every_case_has_a_name_of_its_own_and_there_are_many() -> None:
    names = [(case.area, case.name) for case in cases.CASES]
    assert len(set(names)) == len(names) >= 60
    assert {"flags", "YAML", "recipes", "corpora", "conversations", "model folders", "token shards"} <= {
        a for a, _ in names
    }


def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: Case) -> list[str]:
    """The reasons that the command gives for ``one``, which must be broken, in its table's JSON."""
    monkeypatch.setattr(cases, "CASES", (one, case("!!bool x")))
    out = tmp_path / "hostile.md"
    assert hostile.main(["--out", str(out)]) == 1
    first, second = json.loads(out.with_suffix(".json").read_text())
    assert (first["kept"], second["kept"]) == (False, True)
    rows = out.read_text().splitlines()
    assert "2 cases, 1 promises broken" in rows[2]
    assert one.name in rows[6], "what is broken comes first"
    return list(first["broken"])


def test_a_broken_promise_is_told_and_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = case("a seed of 400 digits")
    reasons = broken(tmp_path, monkeypatch, replace(fine, name="x", says="something else", code=0))
    assert reasons == ["exit code 2, promised 0", "says nothing like 'something else'"]


def test_a_traceback_and_a_sprung_trap_break_a_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path) -> list[str]:
        (folder / "sprung").touch()
        return ["timeit", "-n", "1", "raise ValueError('refused')"]

    reasons = broken(tmp_path, monkeypatch, Case("x", "traps", make, "refused", code=1, never=("sprung",)))
    assert reasons == ["a traceback", "sprung exists"]


def test_memory_and_time_are_limited() -> None:
    hungry = run_limited(["timeit", "-n", "1", "-r", "1", "bytearray(1 << 30)"], 500, 60)
    assert hungry.code == 1
    assert "MemoryError" in hungry.output
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # what a child is told to have had at least
    assert hungry.peak_mb <= max(500, own_mb)
    assert run_limited(["timeit", "-n", "1", "-r", "1", "import time; time.sleep(600)"], 500, 0.5).code is None


def test_cases_that_do_not_exist_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--areas", "nothing"], ["--cases", "nothing like it"]):
        with pytest.raises(SystemExit) as ended:
            hostile.main(words)
        assert ended.value.code == 2
        assert "nothing" in capsys.readouterr().err


def test_the_committed_table_is_of_these_cases_and_all_kept() -> None:
    rows = json.loads((ROOT / "results" / "reference" / "faults" / "hostile.json").read_text())
    assert {(row["area"], row["name"]) for row in rows} == {(case.area, case.name) for case in cases.CASES}
    assert all(row["kept"] for row in rows)
