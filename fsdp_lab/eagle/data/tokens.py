"""Conversations as tokens, with a mask of what the assistant said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor

from fsdp_lab.eagle.data.conversations import Conversation, Skipped, UnusableError, read_conversations
from fsdp_lab.eagle.draft.vocabulary import Vocabulary, count_tokens, most_frequent
from fsdp_lab.models.saved.tokenizers import read_tokenizer
from fsdp_lab.settings.reading.strict import short

GREEN, PLAIN = "\033[32m", "\033[0m"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Example(NamedTuple):
    """``tokens`` int64 ``[T]``, ``said`` bool ``[T]``: which of them the assistant says, its end-of-turn token too."""

    name: str
    tokens: Tensor
    said: Tensor


class Batch(NamedTuple):
    """Conversations side by side, padded on the right, which causal attention never sees.

    ``tokens`` int64 and ``loss_mask`` bool (the assistant's tokens) ``[B, T]``; ``lengths``: without padding.
    """

    tokens: Tensor
    loss_mask: Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The same there."""
        return self._replace(
            tokens=self.tokens.to(device, non_blocking=True), loss_mask=self.loss_mask.to(device, non_blocking=True)
        )

    def conversations(self) -> list[Tensor]:
        """The tokens of each, without padding."""
        return [row[:length] for row, length in zip(self.tokens, self.lengths, strict=True)]


@dataclass
class Examples:
    """A file's conversations as a tokenizer's chat template writes them, and what was left out."""

    examples: list[Example]
    skipped: Skipped

    def said(self) -> Iterator[Tensor]:
        """The assistant's tokens, example by example."""
        return (example.tokens[example.said] for example in self.examples)

    def largest_ids(self) -> Iterator[int]:
        """Each example's largest token."""
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
    """All usable conversations, cut to ``max_length`` tokens. ValueError when not one is left."""
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
    except Exception as error:  # a template is a stranger's program, as a conversation is a stranger's text
        raise refused_by_template(error) from None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = torch.tensor(encoded["input_ids"][:max_length], dtype=torch.int64)
    offsets = encoded["offset_mapping"][:max_length]
    said = torch.tensor([any(a <= start < b for a, b in spans) for start, _ in offsets], dtype=torch.bool)
    if not bool((said[1:] & said[:-1]).any()):
        raise UnusableError(f"no answer within {max_length} tokens")
    return Example(conversation.name, tokens, said)


def question(messages: list[dict[str, str]], tokenizer: Any) -> str:
    """The template's text up to where the assistant speaks next. UnusableError when the template refuses it."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # as in `encode`
        raise refused_by_template(error) from None


def refused_by_template(error: Exception) -> UnusableError:
    """What a template said, or stumbled over."""
    what = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    return UnusableError(f"the chat template refuses it: {short(' '.join(what.split()))}")


def rendered(messages: list[dict[str, str]], tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The template's text, and where in it the assistant speaks: ``(start, end)`` characters, end-of-turn included.

    From its own {% generation %} marks where it has them; else an answer lies between the text rendered up to
    it with a generation prompt and the text rendered with it. Raises UnusableError where neither tells.
    """
    text: str = tokenizer.apply_chat_template(messages, tokenize=False)
    if _GENERATION.search(tokenizer.chat_template):
        return text, _marked(messages, tokenizer)
    spans: list[tuple[int, int]] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True)
            after = tokenizer.apply_chat_template(messages[: i + 1], tokenize=False)
            spans.append(_between(text, before, after, message["content"], spans[-1][1] if spans else 0))
    return text, [(start, _without_layout(text, start, end, tokenizer)) for start, end in spans]


def _marked(messages: list[dict[str, str]], tokenizer: Any) -> list[tuple[int, int]]:
    encoded = tokenizer.apply_chat_template(
        messages,
        return_dict=True,
        return_assistant_tokens_mask=True,
        tokenizer_kwargs={"return_offsets_mapping": True},
    )
    offsets, mask = encoded["offset_mapping"], encoded["assistant_masks"]
    return [(start, max(end, start + 1)) for (start, end), said in zip(offsets, mask, strict=True) if said]


def _between(text: str, before: str, after: str, content: str, cursor: int) -> tuple[int, int]:
    if text.startswith(after) and after.startswith(before):
        return len(before), len(after)
    # the template writes earlier turns otherwise once others follow: find the answer itself, after the last one
    start = text.find(content.strip(), cursor)
    if start < 0:
        raise UnusableError("the chat template does not show where an answer lies")
    return start, start + len(content.strip()) + len(after) - after.rfind(content.strip()) - len(content.strip())


def _without_layout(text: str, start: int, end: int, tokenizer: Any) -> int:
    """``end`` without white space after the end-of-turn token: the template writes it, the model does not."""
    bare = text[start:end].rstrip()
    special = [token for token in tokenizer.all_special_tokens if token and bare.endswith(token)]
    return start + len(bare) if special else end


def collate(examples: list[Example], pad: int = 0) -> Batch:
    """One batch of them, on the CPU; ``pad``: the token that stands for nothing."""
    tokens = torch.nn.utils.rnn.pad_sequence([e.tokens for e in examples], batch_first=True, padding_value=pad)
    mask = torch.nn.utils.rnn.pad_sequence([e.said for e in examples], batch_first=True, padding_value=False)
    return Batch(tokens, mask, tuple(len(e.tokens) for e in examples))


def template_tokens(tokenizer: Any) -> list[int]:
    """Ids that a draft must know however rare: what ends a turn or a document, and the template's other marks."""
    named = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.content in tokenizer.chat_template}
    return sorted({i for i in named | added if i is not None})


def vocabulary_of(examples: Examples, tokenizer: Any, target_size: int, draft_size: int) -> tuple[Vocabulary, float]:
    """The draft's vocabulary, and what share of the assistant's tokens it covers."""
    counts = count_tokens(examples.said(), target_size)
    vocabulary = most_frequent(counts, min(draft_size, target_size), template_tokens(tokenizer))
    return vocabulary, float(counts[vocabulary.t2d].sum() / counts.sum())


def coloured(example: Example, tokenizer: Any, colour: bool) -> str:
    """The text of an example, the assistant's tokens in green, or between brackets where there are no colours."""
    on, off = (GREEN, PLAIN) if colour else ("[[", "]]")
    pieces, last = [], False
    for token, said in zip(example.tokens.tolist(), example.said.tolist(), strict=True):
        if said != last:
            pieces.append(on if said else off)
        pieces.append(_visible(tokenizer.decode([token])))
        last = said
    return "".join(pieces) + (off if last else "")


def _visible(text: str) -> str:
    """``text`` without characters that move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
