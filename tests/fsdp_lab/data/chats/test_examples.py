"""Conversations as tokens: what the assistant said, and nothing else, is marked; what cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_lab.data.chats.conversations import Conversation, Skipped, UnusableError, read_conversations
from fsdp_lab.data.chats.examples import Example, encode, load_examples
from tests.fsdp_lab.eagle.tiny import CHATML, byte_tokenizer

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
    with pytest.raises(ValueError, match="does not exist"):
        list(read_conversations(tmp_path / "none", Skipped()))


HOSTILE: dict[str, tuple[str, str]] = {  # a line, and why it is left out
    "a list as a role": (json.dumps({"conversations": [{"from": ["human"], "value": "x"}]}), "role that is not a text"),
    "an object as a role": (json.dumps({"messages": [{"role": {}, "content": "x"}]}), "role that is not a text"),
    "deep nesting": ('{"conversations": ' + "[" * 100_000, "nested too deeply"),
    "half a surrogate pair": ('{"conversations": [{"from": "human", "value": "\\ud800"}]}', "no Unicode text"),
    "a long number": ('{"id": ' + "9" * 5000 + "}", "broken JSON"),
    "a long role": (line([("r" * 9999, "x")]), "unknown role 'rrr"),
    "a role of control characters": (line([("\x1b[31m", "x")]), r"unknown role '\x1b"),
    "a long line": ('"' + "x" * (1 << 22) + '"', "more than 4,194,304 bytes"),
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
