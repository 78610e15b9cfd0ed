"""The law: the bytes that the ledger counts are the bytes that leave the network interface."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.namespaces import unavailable

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.netns
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ledger_agrees_with_the_interface(tmp_path: Path, ranks: int) -> None:
    out = tmp_path / "link.json"
    command = [sys.executable, "-m", "experiments.bench_link", "--rate", "none", "--ranks", str(ranks)]
    command += ["--elements", str(3 << 20), "--repeats", "3", "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = json.loads(out.read_text())["lines"]
    assert len({line["method"] for line in lines}) > 5
    for line in lines:
        factor = 2 if (line["method"], line["op"]) == ("stock", "reduce_scatter") else 1
        # TCP/IP headers, acknowledgements and two barriers come on top
        assert 1 <= line["interface_bytes"] / (factor * line["ledger_bytes"]) < 1.02, line
