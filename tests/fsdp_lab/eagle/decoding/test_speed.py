"""What a speed says is what decoding did."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from fsdp_lab.eagle import evaluate
from fsdp_lab.eagle.decoding.chain import Sampling, speculate
from fsdp_lab.eagle.decoding.speed import Drafting, Speed, measure_speed, speed_of, speed_table
from tests.fsdp_lab.eagle.tiny import prompts, tiny_draft, tiny_target


def test_it_is_of_every_prompt_and_every_number_of_drafts() -> None:
    target = tiny_target("llama", torch.float64)
    draft = tiny_draft(target)
    asked = prompts(5)
    found = measure_speed(target, draft, asked, 12, [1, 3], Sampling(), stop=[])
    assert [d.num_drafts for d in found.drafting] == [1, 3]
    for drafting in found.drafting:
        answers = [speculate(target, draft, prompt, 12, drafting.num_drafts) for prompt in asked]
        assert drafting.tau == sum(len(g.tokens) - 1 for g in answers) / sum(g.passes for g in answers)
        assert len(drafting.acceptance) == drafting.num_drafts
        assert drafting.same_output == found.prompts == len(asked)
        assert drafting.lookup_tau is not None
        assert drafting.lookup_tau >= 1
        assert drafting.ms > 0
    assert speed_of(asdict(found)) == found


def test_sampled_answers_are_not_held_against_plain_ones() -> None:
    target = tiny_target("llama", torch.float64)
    found = measure_speed(target, tiny_draft(target), prompts(3), 8, [2], Sampling(temperature=1.0, seed=3), stop=[])
    assert found.drafting[0].lookup_tau is found.drafting[0].same_output is None
    assert " of 3" not in speed_table(found)


def test_the_table() -> None:
    slow, fast = Drafting(1, 1.2, 1.1, [0.2], 12.0, 2), Drafting(4, 1.5, 1.3, [0.3, 0.2, 0.1, 0.0], 8.0, 2)
    text = speed_table(Speed(2, 10.0, [slow, fast]))
    assert [line.split()[4] for line in text.splitlines()[2:]] == ["0.83x", "1.25x"]
    assert text.count("2 of 2") == 2
    assert "answers part" not in text
    assert "answers part" in speed_table(Speed(3, 10.0, [slow, fast]))


@pytest.mark.parametrize("value", ["0", "", "1,", "4,x", "-1", "1 2"])
def test_numbers_of_drafts_that_make_no_sense_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([f"--num_drafts={value}"])
    assert "num_drafts" in capsys.readouterr().err
