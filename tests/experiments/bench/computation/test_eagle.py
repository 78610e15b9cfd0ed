"""The benchmark of drafts: both variants train the same, and impossible sizes are refused. Nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from experiments.bench.computation.eagle.__main__ import main
from experiments.bench.computation.eagle.setting import OURS, PLAIN, Setting
from experiments.bench.computation.eagle.training import measure

SMALL = Setting(32, 96, 48, hidden=64, layers=3, batch=2, steps_ahead=3, steps=1, threads=1)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_whole_matrices_and_chunks_have_the_same_loss() -> None:
    ours, plain = measure(OURS, SMALL), measure(PLAIN, SMALL)
    assert ours.first_loss == pytest.approx(plain.first_loss, rel=1e-5)
    assert min(ours.tokens_per_s, plain.tokens_per_s) > 0


def test_a_head_of_odd_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--hidden", "65"])
    assert stop.value.code == 2
    assert "heads of one even size" in capsys.readouterr().err
