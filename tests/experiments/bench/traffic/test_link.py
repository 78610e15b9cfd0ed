"""The law: the bytes that the ledger counts are the bytes that leave the network interface."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.bench.traffic.link.__main__ import main


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_the_ledger_agrees_with_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ranks. (Of two: tests/fsdp_lab/measure/test_wire_check.py, for whole runs.)"""
    out = tmp_path / "link.json"
    words = ["--rate", "none", "--ranks", "3", "--elements", str(3 << 20), "--repeats", "1", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["link", *words])
    overheads: dict[tuple[str, str], float] = {}
    for _ in range(5):  # a busy machine makes TCP send some segments twice: the least count is the payload's
        assert main() == 0
        for line in json.loads(out.read_text())["lines"]:
            key = line["method"], line["op"]
            factor = 2 if key == ("stock", "reduce_scatter") else 1
            overhead = line["interface_bytes"] / (factor * line["ledger_bytes"])
            assert overhead >= 1, line
            overheads[key] = min(overhead, overheads.get(key, overhead))
        if max(overheads.values()) < 1.02:  # TCP/IP headers, acknowledgements and two barriers come on top
            break
    assert len(overheads) > 8
    assert max(overheads.values()) < 1.02, overheads
