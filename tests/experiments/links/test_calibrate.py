"""What a calibration measures, and that it goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.links import calibrate
from experiments.links.collective_times import measure


def test_parts_that_the_file_has_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, measured = tmp_path / "calibration.json", []

    def fake(part: calibrate.Part, repeats: int, seconds: float) -> tuple[str, list[dict[str, object]]]:
        measured.append(part)
        return "collectives" if part[1] != "blocks" else "steps", [{"part": part}]

    monkeypatch.setattr(calibrate, "measure", fake)
    assert calibrate.main(["--out", str(out), "--ranks", "3", "--parts", "2"]) == 0
    assert measured == calibrate.parts([3])[:2]
    assert calibrate.main(["--out", str(out), "--ranks", "3"]) == 0
    assert measured == calibrate.parts([3])
    document = json.loads(out.read_text())
    assert (len(document["steps"]), len(document["collectives"])) == (1, len(measured) - 1)
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize(("argv", "word"), [(["--ranks", "1"], "--ranks"), (["--out", "/no/such/folder/x"], "--out")])
def test_mistakes_are_one_message(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        calibrate.main(["--out", "unused.json", *argv])
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_every_kind_of_collective_is_timed_with_its_bytes() -> None:
    lines = measure(2, "100mbit", [1 << 18], repeats=1)
    assert [(line["kind"], line["bytes"]) for line in lines] == [
        ("exchange", 1 << 17),
        ("all_gather", 1 << 17),
        ("reduce_scatter", 1 << 17),
        ("all_reduce", 8),
    ]
    for line in lines[:3]:
        assert line["seconds"] > 0.9 * line["bytes"] / 12.5e6  # the bucket was empty, or nearly
    assert lines[2]["seconds"] > 1.7 * (1 << 17) / 12.5e6  # gloo's reduce-scatter sends all twice
