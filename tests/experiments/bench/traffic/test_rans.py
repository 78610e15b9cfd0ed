"""The benchmark of rANS streams: who is measured, and what is refused. Nothing is timed."""

from __future__ import annotations

import ctypes.util
import json
from pathlib import Path

import pytest
import torch

from experiments.bench.traffic.rans.__main__ import VARIABLE, main
from experiments.bench.traffic.rans.coders import Coder, ours, peers
from experiments.bench.traffic.rans.measuring import SYMBOLS, measure


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_it_measures_and_writes_what_it_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mib", "0.125", "--repeats", "1", "--json", str(tmp_path / "rans.json")]) == 0
    rows = json.loads((tmp_path / "rans.json").read_text())["rows"]
    assert [row["symbols"] for row in rows] == list(SYMBOLS)
    assert all(row["coder"] == "ours" and row["encode_ns"] > 0 and row["decode_ns"] > 0 for row in rows)
    assert 1.6 < rows[0]["bits"] < 1.75  # the entropy is 1.67
    assert capsys.readouterr().out.count("| ours |") == len(SYMBOLS)


def test_a_coder_that_loses_a_symbol_is_refused() -> None:
    good = ours()

    def decode(stream: torch.Tensor, out: torch.Tensor) -> None:
        good.decode(stream, out)
        out[-1] += 1

    with pytest.raises(RuntimeError, match="lossy gives other symbols back"):
        measure("a grid", [good, Coder("lossy", good.encode, decode)], 1 << 12, 1)


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_peer_that_is_none_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "libother.so"
    cases = {other: "there is no file"}
    other_text = tmp_path / "text.so"
    other_text.write_text("no library")
    cases[other_text] = "cannot be loaded"
    for path, words in cases.items():
        monkeypatch.setenv(VARIABLE, str(path) if how == "variable" else "")
        with pytest.raises(SystemExit) as stop:
            main(["--mib", "0.1", *(["--peer", str(path)] if how == "flag" else [])])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


def test_a_library_without_its_functions_is_refused() -> None:
    name = ctypes.util.find_library("c")
    if name is None:
        pytest.skip("no C library is found by its name")
    with pytest.raises(ValueError, match=r"cannot be loaded|has no function rans_compress"):
        peers(Path(name))
