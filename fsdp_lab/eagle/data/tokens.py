"""The conversations of a file as batches, and the vocabulary that a draft needs for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsdp_lab.data.chats import examples as chats
from fsdp_lab.data.chats.chat_template import template_tokens
from fsdp_lab.data.chats.examples import Example, Examples, check_chat_tokenizer
from fsdp_lab.eagle.draft.vocabulary import Vocabulary, count_tokens, most_frequent
from fsdp_lab.models.saved.tokenizers import read_tokenizer

SHORTEST_ANSWER = 2  # tokens: a draft predicts an answer's second from its first
GREEN, PLAIN = "\033[32m", "\033[0m"


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


def load_chat_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder; ValueError when there is none, or it has no chat template."""
    tokenizer = read_tokenizer(folder, "target_dir")
    check_chat_tokenizer(tokenizer, folder, "target_dir")
    return tokenizer


def load_examples(path: Path, tokenizer: Any, max_length: int) -> Examples:
    """All conversations of a file that a draft can learn from, cut to ``max_length`` tokens.

    ValueError when there is none.
    """
    return chats.load_examples(path, tokenizer, max_length, SHORTEST_ANSWER)


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
