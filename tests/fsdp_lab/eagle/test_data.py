"""Conversations as a draft takes them: batches, its vocabulary, and the commands that show both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsdp_lab.data.chats.chat_template import template_tokens
from fsdp_lab.data.chats.conversations import Conversation
from fsdp_lab.data.chats.examples import Example, encode
from fsdp_lab.eagle.data import __main__ as command, tokens as data
from fsdp_lab.eagle.data.tokens import collate, load_examples, vocabulary_of
from fsdp_lab.eagle.draft.vocabulary import Vocabulary, most_frequent
from tests.fsdp_lab.data.chats.test_examples import TALK, line, messages
from tests.fsdp_lab.eagle.tiny import byte_tokenizer, save_target


def test_what_is_shown_moves_no_cursor() -> None:
    tokenizer = byte_tokenizer()
    example = encode(Conversation("a", messages([("human", "\x1b[2Jx"), ("gpt", "yes\n")])), tokenizer, 100)
    shown = data.coloured(example, tokenizer, colour=False)
    assert "\x1b" not in shown
    assert "\\x1b[2Jx" in shown


def test_batches_are_padded_on_the_right() -> None:
    examples = [
        Example("a", torch.tensor([5, 6, 7]), torch.tensor([False, True, True])),
        Example("b", *[torch.ones(1)] * 2),
    ]
    tokens, mask, lengths = collate(examples)
    assert tokens.tolist() == [[5, 6, 7], [1, 0, 0]]
    assert mask.tolist() == [[False, True, True], [True, False, False]]
    assert lengths == (3, 1)
    assert [tokens.tolist() for tokens in collate(examples).conversations()] == [[5, 6, 7], [1]]


def test_the_vocabulary_is_the_most_frequent_and_what_the_template_needs(tmp_path: Path) -> None:
    counts = torch.tensor([0, 5, 0, 9, 5, 1])
    assert most_frequent(counts, 2).used.tolist() == [1, 3]  # of equals the smaller
    assert most_frequent(counts, 3, always=[5]).used.tolist() == [1, 3, 5]
    assert most_frequent(counts, 5).used.tolist() == [0, 1, 3, 4, 5]  # filled up
    with pytest.raises(ValueError, match="wants 1 to the target's 6 tokens"):
        most_frequent(counts, 7)
    with pytest.raises(ValueError, match="2 special tokens must be in it"):
        most_frequent(counts, 1, always=[0, 1])
    tokenizer = byte_tokenizer()
    assert template_tokens(tokenizer) == [256, 257]
    path = tmp_path / "chats.jsonl"
    path.write_text(line(TALK))
    vocabulary, covered = vocabulary_of(load_examples(path, tokenizer, 100), tokenizer, 300, 8)
    assert {256, 257} < set(vocabulary.used.tolist())
    assert tokenizer.decode(vocabulary.used) == ".HSelo<|im_end|><|im_start|>"  # of those said once the first
    assert 0 < covered < 1


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, path, out = save_target(tmp_path / "target"), tmp_path / "chats.jsonl", tmp_path / "v.safetensors"
    path.write_text(line(TALK, id="one") + "\n{\n")
    assert command.main(["show", str(path), "--target_dir", str(target)]) == 0
    shown = capsys.readouterr().out
    assert "[[Hello.<|im_end|>]]\n<|im_start|>user" in shown
    assert "1 skipped of chats.jsonl: broken JSON (line 2)" in shown
    scan = ["scandata", str(path), "--target_dir", str(target), "--out", str(out), "--draft_vocab_size", "20"]
    assert command.main(scan) == 0
    assert Vocabulary.load(out, 258).draft_size == 20
    with pytest.raises(SystemExit):
        command.main(["show", str(path), "--target_dir", str(tmp_path)])
    assert "has no usable tokenizer" in capsys.readouterr().err
