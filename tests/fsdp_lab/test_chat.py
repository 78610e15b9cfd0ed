"""Chat with a draft: what is answered without one, in fewer passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from fsdp_lab import chat
from fsdp_lab.eagle.draft.folder import save_draft, verifier_of
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.settings.models.saved import ChatSettings
from tests.fsdp_lab.eagle.tiny import save_target, some_vocabulary, tiny_draft, tiny_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    save_target(folder / "target")
    target = Target.from_folder(folder / "target", torch.float32)
    save_draft(tiny_draft(target, some_vocabulary(258, 200)), folder / "draft", verifier_of(str(folder / "target")))
    other = tiny_target("llama", torch.float32)
    save_draft(tiny_draft(other), folder / "other", verifier_of("other"))
    return folder


def words(folder: Path, *more: str) -> list[str]:
    return ["--model_dir", str(folder / "target"), "--max_new_tokens", "12", "--prompt", "What is ice?", *more]


@pytest.mark.parametrize("template", ["true", "false"])
def test_the_same_answer_with_a_draft(folder: Path, template: str, capsys: pytest.CaptureFixture[str]) -> None:
    same = ("--temperature", "0", "--chat_template", template)
    assert chat.main(words(folder, *same)) == 0
    plain = capsys.readouterr()
    assert chat.main(words(folder, *same, "--draft", str(folder / "draft"), "--num_drafts", "3")) == 0
    drafted = capsys.readouterr()
    assert drafted.out == plain.out
    assert plain.out.startswith("What is ice?") is (template == "false")
    assert "a pass of the model" in drafted.err
    assert not plain.err


def test_a_draft_speaks_in_turns_and_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for more in ([], ["--chat_template", "true"], ["--chat_template", "false"]):
        assert chat.main(words(folder, "--draft", str(folder / "draft"), *more)) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("drafted", [False, True])
def test_only_the_nucleus_is_drawn_and_as_often_as_it_should(folder: Path, drafted: bool) -> None:
    """The fewest most likely tokens with a share of top_p together, with their probabilities over it."""
    settings = ChatSettings(top_p=0.4, top_k=30, temperature=4.0, max_new_tokens=1, num_drafts=1)
    model, prompt, draws = load_pretrained(folder / "target").eval(), [5, 9, 2], 600
    say = chat.with_draft(model, folder / "draft", settings) if drafted else chat.plainly(model, settings)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].double() / 4.0
    likely = logits.topk(30)
    share = likely.values.softmax(0)
    size = int((share.cumsum(0) < 0.4).sum()) + 1
    expected = dict(zip(likely.indices[:size].tolist(), (share[:size] / share[:size].sum()).tolist(), strict=True))
    assert 2 < size < 30, "the model is to leave something out, and something to choose from"
    torch.manual_seed(11)
    drawn = Counter(say(prompt, 257).tokens[0] for _ in range(draws))
    assert drawn.keys() <= expected.keys()
    for token, p in expected.items():
        assert abs(drawn[token] - draws * p) < 5 * (draws * p * (1 - p)) ** 0.5, token


def test_a_nucleus_of_nothing_or_more_than_all_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "1.5", "nan"):
        with pytest.raises(SystemExit) as stop:
            chat.main(words(folder, "--top_p", wrong))
        assert stop.value.code == 2
        assert "--top_p: got" in capsys.readouterr().err


def test_anothers_draft_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chat.main(words(folder, "--draft", str(folder / "other")))
    assert "made for a target of 61 tokens and hidden size 32, this one has 258 and 32" in capsys.readouterr().err
