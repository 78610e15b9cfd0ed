"""The table of the bottleneck: planted cells with known answers, and one real cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.links import bottleneck
from experiments.links.bottleneck import Place, efficiency, main, places, table
from tests.distributed import preload
from tests.fsdp_lab.test_train import Lab

preload("fsdp_lab.train")


def cell(place: Place, steps: int = 20, flags: Any = ()) -> dict[str, Any]:
    """100 ms of work; 40 ms of communication for every other rank, four times that behind the slow link."""
    comm = 40.0 * (place.ranks - 1) * (1 if place.rate == "none" else 4)
    numbers = {"step_ms": 100 + comm, "step_ms_mean": 100 + comm, "comm_ms": comm, "comm_share": comm / (100 + comm)}
    others = {"codec_ms": 0.0, "sent_bytes": 1e6, "bytes_trusted": place.ranks > 1 or None, "link_rate_measured": 1e8}
    return {**place._asdict(), **numbers, **others, "warmup_steps_excluded": 5, "model": "m", "cpu": "c"}


def test_one_rank_needs_no_link_and_no_method() -> None:
    assert len(places([1, 2, 4], ["none", "1gbit", "200mbit"], ["none", "identity", "bf16", "int8"])) == 1 + 2 * 3 * 4
    assert places([1], ["1gbit", "200mbit"], ["none", "int8"]) == [Place(1, "none", "none")]


def test_share_and_efficiency() -> None:
    cells = [cell(place) for place in places([1, 2, 4], ["none", "1gbit"], ["none"])]
    assert [efficiency(c, cells) for c in cells] == pytest.approx([1, 1 / 1.4, 1 / 2.6, 1 / 2.2, 1 / 5.8])
    text = table(cells, cores=2)
    assert "| 1gbit | 4 | none | 580 | 480 | 83 % | 0 | 1.00 | 0.17 | yes |" in text
    assert "4 ranks share 2 cores: no efficiency above 0.50 is possible." in text
    assert efficiency(cells[1], cells[1:]) is None


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Place] = []

    def measured(place: Place, steps: int, flags: Any) -> dict[str, Any]:
        if len(ran) == 2:
            raise RuntimeError("killed")
        ran.append(place)
        return cell(place)

    monkeypatch.setattr(bottleneck, "measure", measured)
    file = tmp_path / "b.json"
    words = ["--ranks", "1", "2", "--rates", "none", "1gbit", "--methods", "none", "--json", str(file)]
    with pytest.raises(RuntimeError, match="killed"):
        main(words)
    monkeypatch.setattr(bottleneck, "measure", lambda place, steps, flags: ran.append(place) or cell(place))
    assert main(words) == 0
    assert ran == [Place(1, "none", "none"), Place(2, "none", "none"), Place(2, "1gbit", "none")]
    assert len(json.loads(file.read_text())["cells"]) == 3
    assert (tmp_path / "b.md").read_text().count("\n| ") == 4
    assert (tmp_path / "b.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("content", "words", "complaint"),
    [
        (None, ["--rates", "fast"], "rate: got 'fast'"),
        ("[]", [], "holds no cells"),
        ('{"settings": {"steps": 9}, "cells": []}', [], "were measured with"),
    ],
)
def test_mistakes_are_one_message(
    tmp_path: Path, content: str | None, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as stop:
        main(["--json", str(file), *words])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_a_cell_for_real(tmp_path: Path) -> None:
    lab, small = Lab(tmp_path), ("data_path", "cache_dir", "val_fraction", "max_length", "batch_size", "vocab_size")
    words = lab.flags()
    flags = [word for key in small for word in words[words.index(f"--{key}") :][:2]]
    file = tmp_path / "b.json"
    where = ["--ranks", "2", "--rates", "none", "--methods", "bf16", "--steps", "8"]
    assert main([*where, "--json", str(file), "--", *flags]) == 0
    (found,) = json.loads(file.read_text())["cells"]
    assert 0 < found["comm_share"] < 1
    assert found["bytes_trusted"] is True
    assert found["link_rate_measured"] > 0
