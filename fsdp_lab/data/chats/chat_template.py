"""What a chat template makes of a conversation, and which characters of it the assistant says."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import TemplateError

from fsdp_lab.data.chats.conversations import UnusableError
from fsdp_lab.settings.reading.strict import short

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def question(messages: list[dict[str, str]], tokenizer: Any) -> str:
    """The template's text up to where the assistant speaks next. UnusableError when the template refuses it."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a stranger's program, and may raise anything
        raise refused_by_template(error) from None


def refused_by_template(error: Exception) -> UnusableError:
    """The UnusableError for an exception that a chat template raised."""
    what = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    return UnusableError(f"the chat template refuses it: {short(' '.join(what.split()))}")


def rendered(messages: list[dict[str, str]], tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The template's text, and where in it the assistant speaks: ``(start, end)`` characters, end-of-turn included.

    The template's own {% generation %} marks tell, if it has them. Otherwise an answer lies between the text rendered
    up to it with a generation prompt and the text rendered with it. Raises UnusableError where neither tells.
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
    # the template changes earlier turns once others follow: look for the answer itself, after the previous one
    start = text.find(content.strip(), cursor)
    if start < 0:
        raise UnusableError("the chat template does not show where an answer lies")
    return start, start + len(content.strip()) + len(after) - after.rfind(content.strip()) - len(content.strip())


def _without_layout(text: str, start: int, end: int, tokenizer: Any) -> int:
    """``end`` moved before white space after the end-of-turn token: the template writes that, the model does not."""
    bare = text[start:end].rstrip()
    special = [token for token in tokenizer.all_special_tokens if token and bare.endswith(token)]
    return start + len(bare) if special else end


def template_tokens(tokenizer: Any) -> list[int]:
    """Ids that a draft must know, however rare: ends of turns and documents, and the template's other marks."""
    named = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.content in tokenizer.chat_template}
    return sorted({i for i in named | added if i is not None})
