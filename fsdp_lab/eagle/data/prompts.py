"""The questions of a file that a draft is measured with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsdp_lab.data.chats.chat_template import question
from fsdp_lab.data.chats.conversations import Skipped, UnusableError, read_conversations


def first_prompts(path: Path, tokenizer: Any, count: int, max_length: int) -> list[list[int]]:
    """The first ``count`` questions of a file, as tokens after the chat template, none longer than ``max_length``."""
    prompts: list[list[int]] = []
    for conversation in read_conversations(path, Skipped()):
        asked = next(i for i, message in enumerate(conversation.messages) if message["role"] == "user")
        try:
            text = question(conversation.messages[: asked + 1], tokenizer)
        except UnusableError:
            continue  # counted where the file is read for the table
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) <= max_length:
            prompts.append(tokens)
        if len(prompts) == count:
            break
    return prompts
