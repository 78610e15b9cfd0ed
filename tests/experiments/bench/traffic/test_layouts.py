"""What a divided model says it sends is what leaves the network interface."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from experiments.bench.traffic.layouts.asked import asked_for
from experiments.bench.traffic.layouts.command import check, main
from tests.distributed import preload

preload("experiments.bench.traffic.layouts.ranks")


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_counted_bytes_are_those_of_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "layouts.json"
    words = ["--layouts", "fsdp", "tp", "galaxy", "--methods", "identity", "int8", "--gradients", "int8"]
    words += ["--rate", "none", "--steps", "1", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["layouts", *words])
    least: dict[tuple[str, str], float] = {}
    for _ in range(3):  # a busy machine makes TCP send some segments twice
        assert main() == 0
        lines = {(line["layout"], line["method"]): line for line in json.loads(out.read_text())["lines"]}
        for key, line in lines.items():
            if line["counted_bytes"]:
                overhead = line["interface_bytes"] / line["counted_bytes"]
                least[key] = min(overhead, least.get(key, overhead))
        if max(least.values()) < 1.03:
            break
    assert len(least) == 5  # all but torch's own collectives
    assert min(least.values()) >= 1
    assert max(least.values()) < 1.03, least
    assert lines["tp", "identity"]["counted_bytes"] > 3.5 * lines["tp", "int8"]["counted_bytes"]


def test_arms_are_those_that_the_flags_name() -> None:
    flags = {
        "layouts": ["ddp", "tp", "gpipe"],
        "methods": ["none", "int8"],
        "gradients": "int4",
        "ranks": 2,
        "shares": [3.0, 1.0],
        "blocks": [3, 1],
        "micro_batches": 2,
    }
    found = asked_for(Namespace(**flags))
    assert [(one.layout, one.method, one.gradients, one.shares) for one in found] == [
        ("ddp", "none", "none", ()),
        ("ddp", "none", "int4", ()),
        ("tp", "none", "none", (1.0, 1.0)),
        ("tp", "none", "none", (3.0, 1.0)),
        ("tp", "int8", "int4", (1.0, 1.0)),
        ("tp", "int8", "int4", (3.0, 1.0)),
        ("gpipe", "none", "none", (3, 1)),
        ("gpipe", "int8", "none", (3, 1)),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt2-nanno"}, "no preset 'gpt2-nanno' .did you mean gpt2-nano"),
        ({"sequences": 3}, "sequences: 3 do not divide among 2 data parallel ranks"),
        ({"ranks": 1}, "ranks: got 1"),
        ({"methods": ["itn8"]}, "itn8"),
        ({"micro_batches": 3}, "micro_batches: 4 sequences do not make 3"),
        ({"shares": [1.0]}, "shares: 1 given for 2 ranks"),
        ({"blocks": [1, 2, 1]}, "blocks: 3 given for 2 ranks"),
        ({"quota": [1.0]}, "quota: 1 given for 2 ranks"),
        ({"quota": [1.0, 0.01]}, "quota: got 0.01"),
    ],
)
def test_mistakes_are_found_before_ranks_start(change: dict[str, Any], message: str) -> None:
    right = {
        "model": "gpt2-mini",
        "sequences": 4,
        "length": 8,
        "ranks": 2,
        "steps": 1,
        "methods": [],
        "gradients": "none",
        "layouts": ["fsdp", "gpipe"],
        "micro_batches": 2,
        "shares": None,
        "blocks": None,
        "quota": None,
    }
    check(Namespace(**right))
    with pytest.raises(ValueError, match=message):
        check(Namespace(**right | change))
