"""The law: what the audit counts is what leaves the network interface, for stock collectives too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.bench.traffic.audit.__main__ import TOLERANCE, main, off_by
from experiments.bench.traffic.audit.jobs import BUILDERS
from experiments.bench.traffic.audit.runs import RUNS
from tests.distributed import preload

preload("experiments.bench.traffic.audit.ranks")


def test_every_job_that_has_a_name_is_made() -> None:
    assert {name for _, names in RUNS.values() for name in names} == BUILDERS.keys()


def _rank(sent: int, seen: int, resent: int = 0) -> dict[str, int]:
    return {"sent_bytes": sent, "interface_payload_bytes": seen, "resent_bytes": resent}


def test_a_rank_that_sends_nothing_is_held_against_the_mean() -> None:
    assert off_by([_rank(200, 202), _rank(0, 1)]) == pytest.approx([0.01, 0.01])
    assert max(off_by([_rank(200, 200), _rank(0, 100)])) == 1, "what nobody counted is found"


def test_what_tcp_sent_again_excuses_as_much_of_a_surplus_and_no_lack() -> None:
    assert off_by([_rank(200, 210, resent=8), _rank(200, 204, resent=8)]) == pytest.approx([0.01, 0])
    assert off_by([_rank(200, 190, resent=8), _rank(200, 200)]) == pytest.approx([-0.05, 0])


@pytest.mark.netns
@pytest.mark.usefixtures("forked_ranks")
def test_the_audit_agrees_with_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "audit.json"
    monkeypatch.setattr(sys, "argv", ["audit", "--only", "FSDP2", "--repeats", "1", "--out", str(out)])
    assert main() == 0
    (result,) = json.loads(out.read_text())["results"]
    assert result["job"] == "FSDP2"
    for rank, off in zip(result["ranks"], off_by(result["ranks"]), strict=True):
        assert off < TOLERANCE
        assert off > 0 or rank["resent_bytes"], "gloo's own headers come on top"
    assert {line["op"] for line in result["ranks"][0]["lines"]} == {"all_gather", "reduce_scatter"}
    assert "| FSDP2 | 2 |" in out.with_suffix(".md").read_text()
