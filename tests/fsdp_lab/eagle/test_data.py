"""Conversations as tokens: what the assistant said, and nothing else, is marked; what cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab.eagle.data import __main__ as command, tokens as data
from fsdp_lab.eagle.data.chat_template import template_tokens
from fsdp_lab.eagle.data.conversations import Conversation, Skipped, UnusableError, read_conversations
from fsdp_lab.eagle.data.tokens import Example, collate, encode, load_examples, vocabulary_of
from fsdp_lab.eagle.draft.vocabulary import Vocabulary, most_frequent
from tests.fsdp_lab.eagle.tiny import CHATML, byte_tokenizer, save_target

WITH_MARKS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETS_THOUGHTS = CHATML.replace(  # as Qwen3: only the last answer keeps what stands before </think>
    "message['content']", "(message['content'] if loop.last else message['content'].split('</think>')[-1])"
)
TALK = [("human", "Hi ü?"), ("gpt", "Hello."), ("human", "Bye\n"), ("gpt", "See you")]


def line(turns: list[tuple[str, str]], **more: Any) -> str:
    return json.dumps({"conversations": [{"from": who, "value": text} for who, text in turns], **more})


def messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": {"human": "user", "gpt": "assistant"}[who], "content": text} for who, text in turns]


def said(example: Example, tokenizer: Any) -> list[str]:
    """The marked runs, as text."""
    runs: list[list[int]] = []
    for i, (token, mine) in enumerate(zip(example.tokens.tolist(), example.said.tolist(), strict=True)):
        if mine:
            if i == 0 or not example.said[i - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize("template", [CHATML, WITH_MARKS], ids=["rendered", "marked"])
def test_the_assistants_words_and_ends_of_turn_are_marked(template: str) -> None:
    tokenizer = byte_tokenizer(template)
    example = encode(Conversation("a", messages(TALK)), tokenizer, 1000)
    assert said(example, tokenizer) == ["Hello.<|im_end|>", "See you<|im_end|>"]
    assert tokenizer.decode(example.tokens) == tokenizer.apply_chat_template(messages(TALK), tokenize=False)


def test_a_template_that_rewrites_earlier_answers() -> None:
    tokenizer = byte_tokenizer(FORGETS_THOUGHTS)
    talk = [("human", "a"), ("gpt", "Yes."), ("human", "b"), ("gpt", "hm</think>Yes.")]
    example = encode(Conversation("a", messages(talk)), tokenizer, 1000)
    assert said(example, tokenizer) == ["Yes.<|im_end|>", "hm</think>Yes.<|im_end|>"]
    with pytest.raises(UnusableError, match="does not show where an answer lies"):
        encode(Conversation("a", messages([("human", "a"), ("gpt", "x</think>Yes."), *talk[2:]])), tokenizer, 1000)


def test_what_is_cut_off_and_what_the_template_refuses() -> None:
    tokenizer = byte_tokenizer()
    whole = encode(Conversation("a", messages(TALK)), tokenizer, 1000)
    cut = encode(Conversation("a", messages(TALK)), tokenizer, 36)
    assert torch.equal(cut.tokens, whole.tokens[:36])
    assert torch.equal(cut.said, whole.said[:36])
    with pytest.raises(UnusableError, match="no answer within 12 tokens"):
        encode(Conversation("a", messages(TALK)), tokenizer, 12)
    strict = byte_tokenizer("{{ raise_exception('no system turn') }}")
    with pytest.raises(UnusableError, match="refuses it: no system turn"):
        encode(Conversation("a", messages(TALK)), strict, 12)


def test_every_unusable_line_is_named_and_counted(tmp_path: Path) -> None:
    openai = {"messages": [{"role": "system", "content": "s"}, *messages(TALK)]}
    lines = [
        line(TALK, id="first"),
        json.dumps(openai),
        "{broken",
        "[1]",
        json.dumps({"text": "x"}),
        line([("human", "x")]),
        line([("robot", "x")]),
        line([("robot", "x")]),
        line([("gpt", "x"), ("human", "y")]),
        line([("human", " "), ("gpt", "y")]),
        "",
        line([("human", "x" * 300), ("gpt", "y")], id="too long"),
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(lines))
    found = load_examples(path, byte_tokenizer(), 100)
    assert [example.name for example in found.examples] == ["first", "line 2"]
    assert list(found.skipped.lines()) == [
        "2 skipped of chats.jsonl: unknown role 'robot' (line 7, line 8)",
        "1 skipped of chats.jsonl: broken JSON (line 3)",
        "1 skipped of chats.jsonl: not a JSON object (line 4)",
        "1 skipped of chats.jsonl: no conversations or messages (line 5)",
        "1 skipped of chats.jsonl: nothing said by the assistant (line 6)",
        "1 skipped of chats.jsonl: user and assistant do not take turns, user first (line 9)",
        "1 skipped of chats.jsonl: a turn without text (line 10)",
        "1 skipped of chats.jsonl: no answer within 100 tokens (too long)",
    ]
    path.write_text("{broken\n")
    with pytest.raises(ValueError, match=r"no usable conversation .*\n1 skipped of chats.jsonl: broken JSON"):
        load_examples(path, byte_tokenizer(), 100)
    with pytest.raises(ValueError, match="cannot read"):
        list(read_conversations(tmp_path / "none", Skipped()))


HOSTILE: dict[str, tuple[str, str]] = {  # a line, and why it is left out
    "a list as a role": (json.dumps({"conversations": [{"from": ["human"], "value": "x"}]}), "role that is not a text"),
    "an object as a role": (json.dumps({"messages": [{"role": {}, "content": "x"}]}), "role that is not a text"),
    "deep nesting": ('{"conversations": ' + "[" * 100_000, "nested too deeply"),
    "half a surrogate pair": ('{"conversations": [{"from": "human", "value": "\\ud800"}]}', "no Unicode text"),
    "a long number": ('{"id": ' + "9" * 5000 + "}", "broken JSON"),
    "a long role": (line([("r" * 9999, "x")]), "unknown role 'rrr"),
    "a role of control characters": (line([("\x1b[31m", "x")]), r"unknown role '\x1b"),
    "a long line": ('"' + "x" * (1 << 22) + '"', "more than 4,194,304 characters"),
    "many turns": (line([("human", "x"), ("gpt", "y")] * 501), "more than 1,000 turns"),
    "no text": (line([("human", "x"), ("gpt", 7)]), "a turn without text"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_hostile_line_costs_itself_alone(tmp_path: Path, name: str) -> None:
    hostile, reason = HOSTILE[name]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join([line(TALK, id="before"), hostile, line(TALK, id="after")]))
    found = load_examples(path, byte_tokenizer(), 100)
    assert [example.name for example in found.examples] == ["before", "after"]
    [said] = found.skipped.lines()
    assert said.startswith("1 skipped of chats.jsonl: ")
    assert reason in said
    assert said.endswith("(line 2)")
    assert len(said) < 200
    assert said.isprintable()


def test_as_many_reasons_as_lines_are_not_all_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join([line(TALK), *(line([(f"role {i}", "x")]) for i in range(200))]))
    said = list(load_examples(path, byte_tokenizer(), 100).skipped.lines())
    assert len(said) == 51
    assert said[0].startswith("150 skipped of chats.jsonl: other reasons")


@pytest.mark.parametrize("given", [["x"], {"x": 1}, "\ud800", "\x1b[2J", "x" * 101, "", None])
def test_an_id_that_cannot_be_printed_is_the_line(tmp_path: Path, given: Any) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line(TALK, id=given))
    assert [example.name for example in load_examples(path, byte_tokenizer(), 100).examples] == ["line 1"]


def test_what_a_template_stumbles_over_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join([line(TALK, id="fine"), line([("human", "stumble"), ("gpt", "x")], id="other")]))
    stumbles = "{% if messages[0]['content'] == 'stumble' %}{{ messages[0]['content'] + 1 }}{% endif %}" + CHATML
    found = load_examples(path, byte_tokenizer(stumbles), 100)
    assert [example.name for example in found.examples] == ["fine"]
    assert "the chat template refuses it: TypeError" in next(found.skipped.lines())


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
