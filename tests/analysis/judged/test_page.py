"""A judged method's place among reference rows whose truth was planted, and the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.judged.__main__ import main
from analysis.judged.place import Place, place
from tests.analysis.planted_rows import SEEDS, arm, row, write

MINE = "mine<b>"


def reference(folder: Path, **changes: Any) -> Path:
    rows = [
        *arm("none", parameters="none", **changes),
        *[row("int8", s, 0.001 + 0.001 * s, "none", **changes) for s in SEEDS],
        *[row("int4", s, 0.04 + 0.001 * s, "none", **changes) for s in SEEDS],
        *arm("topk", 0.5, parameters="int8", **changes),
    ]
    return write(folder / "reference.jsonl", rows)


def placed(folder: Path, worse: float, bits: float, base: float = 0.0, seeds: tuple[int, ...] = SEEDS) -> Place:
    sent = {"reduce_scatter": round(bits / 8 * 1_000_000 * 100 / 2), "all_gather": 100}
    mine = [row(MINE, s, base + worse + 0.001 * s, "none", bytes_compressed_by_op=sent) for s in seeds]
    baseline = write(folder / "none.jsonl", arm("none", base, parameters="none"))
    return place(MINE, write(folder / "mine.jsonl", mine), baseline, reference(folder))


def test_it_stands_where_it_was_planted(tmp_path: Path) -> None:
    found = placed(tmp_path, worse=0.02, bits=6.0)
    assert found.judged.bits == pytest.approx(6.0)
    assert found.judged.change == pytest.approx(0.0222, abs=2e-4)  # exp(0.022) - 1
    assert found.judged.low is not None
    assert found.judged.low < found.judged.change
    assert [one.label for one in found.neighbours] == ["int8", MINE, "int4"]
    assert found.not_worse_at_fewer_bits == []
    assert {p.label for p in found.points} == {"none", "int8", "int4", MINE}


def test_arms_that_send_less_and_lose_less_are_named(tmp_path: Path) -> None:
    assert placed(tmp_path, worse=0.2, bits=9.0).not_worse_at_fewer_bits == ["int8", "int4"]


def test_a_method_is_compared_with_its_own_machines_baseline(tmp_path: Path) -> None:
    here, elsewhere = placed(tmp_path, 0.02, 6.0), placed(tmp_path, 0.02, 6.0, base=0.1)
    assert elsewhere.judged.change == pytest.approx(here.judged.change)
    assert "3 of 3" in here.digits
    assert "0.1000 nats away" in elsewhere.digits


def test_one_seed_has_no_interval_and_the_others_baselines_are_no_lost_pairs(tmp_path: Path) -> None:
    found = placed(tmp_path, 0.02, 6.0, seeds=(2,))
    assert (found.judged.pairs, found.judged.low) == (1, None)


def test_rows_without_the_method_are_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", arm("int8", parameters="none"))
    with pytest.raises(ValueError, match="no finished training of 'mine'"):
        place("mine", rows, write(tmp_path / "none.jsonl", arm("none", parameters="none")), reference(tmp_path))


def facts(folder: Path) -> dict[str, Any]:
    trained = {"rows": "mine.jsonl", "baseline": "none.jsonl", "reference": "reference.jsonl"}
    law = {"kind": "law", "name": "zeros_stay_zero", "about": "Zeros.", "holds": True, "message": "", "seconds": 1.0}
    return {
        "file": "mine.py",
        "sha256": "0" * 64,
        "look": {"method": MINE, "about": "A <script>", "settings": {}},
        "facts": {"laws": [law], "ranks": [], "errors": [], "speed": []},
        "broken": [],
        "objections": [["warning", "its bits grow <with> the ranks"]],
        "trainings": {**{name: str(folder / file) for name, file in trained.items()}, "why_not": ""},
        "machine": {"cores": 2, "cpu": "a CPU", "ram_gb": 8},
        "versions": {"torch": "2.13.0"},
        "command": "fsdp-lab judge mine.py",
        "seconds": 1.0,
    }


@pytest.mark.parametrize(("real", "objects"), [(6.0, False), (5.7, False), (1.0, True)])
def test_other_bits_in_training_than_when_judged_are_told(real: float, objects: bool, tmp_path: Path) -> None:
    placed(tmp_path, worse=0.02, bits=6.0)
    said = facts(tmp_path)
    said["facts"]["errors"] = [
        {"kind": "error", "judged": True, "label": MINE, "data": "real", "bits": real, "nmse": 0.1, "cosine": 0.9}
    ]
    (tmp_path / "facts.json").write_text(json.dumps(said))
    assert main([str(tmp_path / "facts.json")]) == 0
    for text in ((tmp_path / "index.html").read_text(), (tmp_path / "judged.json").read_text()):
        assert ("in training it sent 6 bits" in text) is objects


def test_the_page_and_the_json_say_the_same_and_escape_names(tmp_path: Path) -> None:
    placed(tmp_path, worse=0.02, bits=6.0)
    (tmp_path / "facts.json").write_text(json.dumps(facts(tmp_path)))
    assert main([str(tmp_path / "facts.json")]) == 0
    page = (tmp_path / "index.html").read_text()
    said = json.loads((tmp_path / "judged.json").read_text())
    assert f"{100 * said['place']['judged']['change']:+.2f} %" in page
    assert "data:image/svg+xml;base64," in page
    assert "mine<b>" not in page
    assert "<with>" not in page
    assert said["place"]["neighbours"][1]["is_judged"]
    assert (tmp_path / "place.svg").exists()


def test_a_file_of_another_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "facts.json").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "facts.json")])
    assert stop.value.code == 2
    assert "was not written by fsdp-lab judge" in capsys.readouterr().err
