"""Conversations as tokens, with a mask that says which of them the assistant said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsdp_lab.eagle.data.chat_template import refused_by_template, rendered, template_tokens
from fsdp_lab.eagle.data.conversations import Conversation, Skipped, UnusableError, read_conversations
from fsdp_lab.eagle.draft.vocabulary import Vocabulary, count_tokens, most_frequent
from fsdp_lab.models.saved.tokenizers import read_tokenizer

GREEN, PLAIN = "\033[32m", "\033[0m"


class Example(NamedTuple):
    """One conversation: ``tokens`` int64 ``[T]``, and ``said`` bool ``[T]``, which of them the assistant says.

    Its end-of-turn tokens count as said.
    """

    name: str
    tokens: Tensor
    said: Tensor


class Batch(NamedTuple):
    """Several conversations, padded on the right, where causal attention never looks.

    ``tokens`` int64 and ``loss_mask`` bool (the assistant's tokens) ``[B, T]``; ``lengths``: without padding.
    """

    tokens: Tensor
    loss_mask: Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; the copy may run in the background."""
        return self._replace(
            tokens=self.tokens.to(device, non_blocking=True), loss_mask=self.loss_mask.to(device, non_blocking=True)
        )

    def conversations(self) -> list[Tensor]:
        """The tokens of each conversation, without padding."""
        return [row[:length] for row, length in zip(self.tokens, self.lengths, strict=True)]


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


def load_chat_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder; ValueError when there is none, or it has no chat template."""
    tokenizer = read_tokenizer(folder, "target_dir")
    if tokenizer.chat_template is None:
        raise ValueError(f"target_dir: the tokenizer of {folder} has no chat template: add chat_template.jinja to it")
    if not tokenizer.is_fast:
        raise ValueError(f"target_dir: the tokenizer of {folder} gives no offsets: it needs a tokenizer.json")
    return tokenizer


def load_examples(path: Path, tokenizer: Any, max_length: int) -> Examples:
    """All usable conversations of a file, cut to ``max_length`` tokens. ValueError when there is none."""
    skipped, examples = Skipped(), []
    for conversation in read_conversations(path, skipped):
        try:
            examples.append(encode(conversation, tokenizer, max_length))
        except UnusableError as reason:
            skipped.add(str(reason), conversation.name)
    if not examples:
        raise ValueError(f"data_path: no usable conversation in {path}\n" + "\n".join(skipped.lines()))
    return Examples(examples, skipped)


def encode(conversation: Conversation, tokenizer: Any, max_length: int) -> Example:
    """One conversation as tokens.

    Raises UnusableError when the template refuses it, or when fewer than two tokens of any answer are left: a draft
    predicts an answer's second token from its first.
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
    if not bool((said[1:] & said[:-1]).any()):
        raise UnusableError(f"no answer within {max_length} tokens")
    return Example(conversation.name, tokens, said)


def collate(examples: list[Example], pad: int = 0) -> Batch:
    """The batch of ``examples``, on the CPU; ``pad`` is the token that fills the shorter ones."""
    tokens = torch.nn.utils.rnn.pad_sequence([e.tokens for e in examples], batch_first=True, padding_value=pad)
    mask = torch.nn.utils.rnn.pad_sequence([e.said for e in examples], batch_first=True, padding_value=False)
    return Batch(tokens, mask, tuple(len(e.tokens) for e in examples))


def vocabulary_of(examples: Examples, tokenizer: Any, target_size: int, draft_size: int) -> tuple[Vocabulary, float]:
    """The draft's vocabulary, and the fraction of the assistant's tokens that it covers."""
    counts = count_tokens(examples.said(), target_size)
    vocabulary = most_frequent(counts, min(draft_size, target_size), template_tokens(tokenizer))
    return vocabulary, float(counts[vocabulary.t2d].sum() / counts.sum())


def coloured(example: Example, tokenizer: Any, colour: bool) -> str:
    """The text of an example, the assistant's tokens in green, or between brackets where there are no colours."""
    on, off = (GREEN, PLAIN) if colour else ("[[", "]]")
    texts, last = [], False
    for token, said in zip(example.tokens.tolist(), example.said.tolist(), strict=True):
        if said != last:
            texts.append(on if said else off)
        texts.append(_visible(tokenizer.decode([token])))
        last = said
    return "".join(texts) + (off if last else "")


def _visible(text: str) -> str:
    """``text`` without characters that move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
