"""The benchmark of many units: every number of them has a line for each arm. Nothing is timed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.bench.traffic.units.__main__ import main
from experiments.bench.traffic.units.ranks import RANKS, Asked, measure
from tests.distributed import run_program


def one_rank() -> None:
    """The rank and the folder where ranks meet are the words."""
    measure(int(sys.argv[1]), sys.argv[2], Asked([2, 3], ["none", "int8 + delta"], 16, 1, 1))


def test_every_arm_has_a_line_for_every_number(tmp_path: Path) -> None:
    code, said, complaint = run_program(one_rank, [[str(r), str(tmp_path)] for r in range(RANKS)], [{}] * RANKS)
    assert code == 0, complaint
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines()[2:]]
    assert [line[:2] for line in lines] == [[n, arm] for n in ("2", "3") for arm in ("none", "int8 + delta")]
    for none, ours in zip(lines[::2], lines[1::2], strict=True):
        assert (float(none[5]), float(none[6])) == (0, 0)
        assert float(ours[6]) >= 0
        assert float(ours[3]) > 0


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("int9 + int8", "unknown compression method 'int9'"),
        ("int8 + powersgd", "--arms: 'int8 + powersgd': powersgd does not carry parameters"),
        ("delta", "--arms: 'delta': delta does not carry gradients"),
    ],
)
def test_nonsense_is_refused_before_ranks_start(arm: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--arms", arm])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
