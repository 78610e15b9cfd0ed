"""Continue a prompt with a saved model.

    python -m fsdp_lab.chat --model_dir fsdp_output/runs/NAME/final_model --prompt "The capital of"

Without --prompt it reads prompts line by line until an empty line or the end of the input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.cli import parse_as
from fsdp_lab.data import TextTokenizer, load_tokenizer
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.settings import Config, Settings, setting
from fsdp_lab.user_errors import unix_pipes, user_errors


@dataclass(frozen=True)
class ChatSettings(Settings):
    """Which model, and how to draw from it."""

    model_dir: str | None = setting(None, "folder of a saved model")
    trust_pickle: bool = setting(False, "also read weights from pickles (.bin), which can run code")
    prompt: str | None = setting(None, "text to continue; none: ask for prompts")
    max_new_tokens: int = setting(64, "tokens to add at most", at_least=1)
    temperature: float = setting(0.8, "0: always the most likely token", at_least=0)
    top_k: int = setting(50, "draw among this many most likely tokens; 0: among all", at_least=0)
    seed: int = setting(42, "seed of the drawing", at_least=0)


@dataclass(frozen=True)
class ChatConfig(Config):
    """All settings of one conversation."""

    chat: ChatSettings = field(default_factory=ChatSettings)


def complete(model: PreTrainedModel, tokenizer: TextTokenizer, prompt: str, settings: ChatSettings) -> str:
    """``prompt`` and its continuation, up to the end of the document or of the model's context."""
    ids = torch.tensor([tokenizer.encode(prompt).tolist() or [tokenizer.eot_id]])
    context = model.config.max_position_embeddings
    room = context - ids.shape[1]
    if room < 1:
        raise ValueError(f"prompt: {ids.shape[1]} tokens do not fit in the context of {context}")
    drawing = {"temperature": settings.temperature, "top_k": settings.top_k} if settings.temperature else {}
    continued = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=settings.temperature > 0,
        max_new_tokens=min(settings.max_new_tokens, room),
        pad_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
        **drawing,
    )
    return tokenizer.decode([i for i in continued[0].tolist() if i != tokenizer.eot_id])


def prompts(settings: ChatSettings) -> Iterator[str]:
    """The one prompt of the command line, or line after line of the input."""
    if settings.prompt is not None:
        yield settings.prompt
        return
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline().rstrip("\n")
        if not line:
            return
        yield line


def main(argv: list[str]) -> int:
    """Print a continuation for each prompt; returns the exit code."""
    with user_errors("fsdp_lab.chat"):
        settings = parse_as(ChatConfig, argv, "fsdp_lab.chat").chat
        if settings.model_dir is None:
            raise ValueError("model_dir: missing; give the folder of a saved model")
        model = load_pretrained(Path(settings.model_dir), settings.trust_pickle).eval()
        tokenizer = load_tokenizer(Path(settings.model_dir))
        torch.manual_seed(settings.seed)
        for prompt in prompts(settings):
            print(complete(model, tokenizer, prompt, settings), flush=True)
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
