"""Chat with a draft: what is answered without one, in fewer passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsdp_lab import chat
from fsdp_lab.eagle.export import save_draft, verifier_of
from fsdp_lab.eagle.target import Target
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


def test_anothers_draft_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chat.main(words(folder, "--draft", str(folder / "other")))
    assert "made for a target of 61 tokens and hidden size 32, this one has 258 and 32" in capsys.readouterr().err
