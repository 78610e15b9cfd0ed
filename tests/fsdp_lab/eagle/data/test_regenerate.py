"""Answers by the target itself: those of decoding one conversation alone, whole after a kill, and none left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab.data.chats.conversations import Skipped, read_conversations
from fsdp_lab.eagle.data import __main__ as command
from fsdp_lab.eagle.data.tokens import load_chat_tokenizer
from fsdp_lab.eagle.decoding.chain import speculate
from fsdp_lab.eagle.draft.target import Target
from tests.fsdp_lab.eagle.tiny import save_target, some_vocabulary, tiny_draft

LIMIT = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target; conversations of one and two questions, with a system's word, and one that is not answered yet."""
    folder = tmp_path_factory.mktemp("regenerate")
    save_target(folder / "target")
    talks = [[("human", "Hi"), ("gpt", "-")], [("system", "Be brief."), ("human", "Why is it so?"), ("gpt", "-")]]
    talks += [[("human", "One?"), ("gpt", "-"), ("human", "And two?"), ("gpt", "-")], [("human", "Not answered")]]
    talks += [[("human", "long " * 60), ("gpt", "-")], [("human", "The last one"), ("gpt", "-")]]
    rows = [{"id": f"n{i}", "conversations": [{"from": w, "value": v} for w, v in t]} for i, t in enumerate(talks)]
    (folder / "chats.jsonl").write_text("{\n" + "\n".join(map(json.dumps, rows)))
    return folder


def regenerate(folder: Path, out: str, *more: str) -> int:
    given = ["--target_dir", str(folder / "target"), "--max_new_tokens", str(LIMIT), "--batch_size", "2", *more]
    return command.main(["regenerate", str(folder / "chats.jsonl"), "--out", str(folder / out), *given])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_those_of_greedy_decoding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, each turn after the target's own earlier answers; by our own decoding, without batches or padding."""
    assert regenerate(folder, "own.jsonl") == 0
    said = capsys.readouterr().out
    found = rows(folder / "own.jsonl")
    tokenizer = load_chat_tokenizer(folder / "target")
    target = Target.from_folder(folder / "target", torch.float32)
    draft = tiny_draft(target, some_vocabulary(target.vocab_size))
    assert [(row["id"], row["source"]) for row in found] == [(f"n{i}", i) for i in (0, 1, 2, 3, 5)]
    cut_off = 0
    for row in found:
        turns = [{"role": {"human": "user", "gpt": "assistant"}.get(t["from"], t["from"]), "content": t["value"]}
                 for t in row["conversations"]]  # fmt: skip
        answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
        assert len(answers) == (2 if row["id"] == "n2" else 1)
        for i in answers:
            text = tokenizer.apply_chat_template(turns[:i], tokenize=False, add_generation_prompt=True)
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            got = speculate(target, draft, prompt, LIMIT, 0, stop=[tokenizer.eos_token_id]).tokens
            assert tokenizer.decode(got, skip_special_tokens=True) == turns[i]["content"]
            cut_off += tokenizer.eos_token_id not in got
    assert f"6 answers in {folder / 'own.jsonl'}, {cut_off} of them cut off at {LIMIT} tokens" in said
    assert sum(row["cut_off"] for row in found) == cut_off
    assert "1 skipped of chats.jsonl: broken JSON (line 1)" in said
    assert f"1 skipped of chats.jsonl: a question leaves no room for {LIMIT} tokens (n4)" in said
    assert len(list(read_conversations(folder / "own.jsonl", Skipped()))) == len(found), "it can be trained on"


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_a_killed_one_goes_on_to_the_same_file(folder: Path, kept: int) -> None:
    """Also where answers are drawn: killed in the middle of a row, of a batch, or before the first."""
    drawn = ("--temperature", "1.0", "--seed", "3")
    if not (folder / "whole.jsonl").exists():
        assert regenerate(folder, "whole.jsonl", *drawn) == 0
    whole = (folder / "whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    out = f"killed-{kept}.jsonl"
    (folder / out).write_bytes(b"".join(lines[:kept]) + lines[kept][:-7])
    settings = (folder / "whole.jsonl.settings.json").read_bytes()
    (folder / f"{out}.settings.json").write_bytes(settings)
    assert regenerate(folder, out, *drawn) == 0
    assert (folder / out).read_bytes() == whole
    assert regenerate(folder, out, *drawn) == 0
    assert (folder / out).read_bytes() == whole, "nothing comes twice"


def test_what_does_not_belong_together_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mixed.jsonl").write_text("")
    with pytest.raises(SystemExit):
        regenerate(folder, "mixed.jsonl")
    assert "was made otherwise" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        regenerate(folder, "chats.jsonl")
    assert "is the file of conversations itself" in capsys.readouterr().err
