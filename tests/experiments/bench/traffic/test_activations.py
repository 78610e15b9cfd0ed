"""The benchmark of activations: every method has its line, counted, and nonsense is refused. Nothing is timed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from experiments.bench.traffic.activations.__main__ import main
from experiments.bench.traffic.activations.ranks import RANKS, measure
from tests.distributed import run_program


def one_rank() -> None:
    """The rank and the folder where ranks meet are the words."""
    measure(int(sys.argv[1]), sys.argv[2], ["none", "int8"], [8], 256, 2, 1)


def test_every_method_has_a_line_with_its_bytes(tmp_path: Path) -> None:
    code, said, complaint = run_program(one_rank, [[str(r), str(tmp_path)] for r in range(RANKS)], [{}] * RANKS)
    assert code == 0, complaint
    sent = dict(re.findall(r"(?m)^  (\w+) .*sent +(\S+)$", said))
    assert list(sent) == ["torch", "none", "int8"]
    assert sent["torch"] == "-"
    assert float(sent["int8"].rstrip("%")) < 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "0"], "--tokens, --features, --repeats and --threads must be 1 or more"),
        (["--methods", "int9"], "unknown compression method 'int9'"),
    ],
)
def test_nonsense_is_refused_before_ranks_start(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
