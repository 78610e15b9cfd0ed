"""Conversations as tokens, with a mask that says which of them the assistant said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from fsdp_lab.data.chats.chat_template import refused_by_template, rendered
from fsdp_lab.data.chats.conversations import Conversation, Skipped, UnusableError, read_conversations


class Example(NamedTuple):
    """One conversation: ``tokens`` int64 ``[T]``, and ``said`` bool ``[T]``, which of them the assistant says.

    Its end-of-turn tokens count as said.
    """

    name: str
    tokens: Tensor
    said: Tensor


@dataclass
class Examples:
    """The conversations of a file as tokens, and which conversations were left out."""

    examples: list[Example]
    skipped: Skipped

    def said(self) -> Iterator[Tensor]:
        """The assistant's tokens, example by example."""
        return (example.tokens[example.said] for example in self.examples)

    def largest_ids(self) -> Iterator[int]:
        """The largest token id of each example."""
        return (int(example.tokens.max()) for example in self.examples)


def digest_of(examples: Sequence[Example]) -> str:
    """64 hexadecimal digits that follow from all tokens, their order, and whose they are."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(len(example.tokens).to_bytes(8, "little"))
        digest.update(example.tokens.numpy().tobytes() + example.said.numpy().tobytes())
    return digest.hexdigest()


def read_chat_tokenizer(folder: Path, key: str) -> Any:
    """The tokenizer.json of a Hugging Face folder with its chat template; ``key`` is the flag that named the folder.

    The same tokens as `TextTokenizer` gives, and no other file of the folder is read. ValueError when there is none, or
    it has no chat template.
    """
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a stranger's files: the readers of transformers and tokenizers raise any exception
        what = " ".join(str(error).split())
        raise ValueError(f"{key}: {folder} has no usable tokenizer: {what}") from None
    check_chat_tokenizer(tokenizer, folder, key)
    return tokenizer


def check_chat_tokenizer(tokenizer: Any, folder: Path, key: str) -> None:
    """ValueError when ``tokenizer``, of the ``folder`` that the flag ``key`` named, is not one for conversations."""
    if tokenizer.chat_template is None:
        raise ValueError(f"{key}: the tokenizer of {folder} has no chat template: add chat_template.jinja to it")
    if not tokenizer.is_fast:
        raise ValueError(f"{key}: the tokenizer of {folder} gives no offsets: it needs a tokenizer.json")


def load_examples(
    path: Path,
    tokenizer: Any,
    max_length: int,
    shortest_answer: int = 1,
    check: Callable[[], None] = lambda: None,
) -> Examples:
    """All usable conversations of a file, cut to ``max_length`` tokens. ValueError when there is none.

    ``shortest_answer``: a conversation of which less is left, of every answer, is not usable (`encode`). ``check`` is
    called before each; what it raises ends the reading.
    """
    skipped, examples = Skipped(), []
    for conversation in read_conversations(path, skipped):
        check()
        try:
            examples.append(encode(conversation, tokenizer, max_length, shortest_answer))
        except UnusableError as reason:
            skipped.add(str(reason), conversation.name)
    if not examples:
        raise ValueError(f"data_path: no usable conversation in {path}\n" + "\n".join(skipped.lines()))
    return Examples(examples, skipped)


def encode(conversation: Conversation, tokenizer: Any, max_length: int, shortest_answer: int = 1) -> Example:
    """One conversation as tokens, the first ``max_length`` of them.

    Raises UnusableError when the template refuses it, or when no answer has ``shortest_answer`` tokens in a row left: 1
    for a model, which predicts an answer from the question, 2 for a draft, which predicts an answer's second token from
    its first. A conversation's first token is never predicted.
    """
    try:
        text, spans = rendered(conversation.messages, tokenizer)
    except UnusableError:
        raise
    except Exception as error:  # a template is a stranger's program, and may raise anything
        raise refused_by_template(error) from None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = torch.tensor(encoded["input_ids"][:max_length], dtype=torch.int64)
    offsets = encoded["offset_mapping"][:max_length]
    said = torch.tensor([any(a <= start < b for a, b in spans) for start, _ in offsets], dtype=torch.bool)
    in_a_row = said[1:] if shortest_answer == 1 else said[1:] & said[:-1]
    if not bool(in_a_row.any()):
        raise UnusableError(f"no answer within {max_length} tokens")
    return Example(conversation.name, tokens, said)
