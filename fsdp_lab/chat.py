"""Continue a prompt with a saved model, or answer it.

    python -m fsdp_lab.chat --model_dir fsdp_output/runs/NAME/final_model --prompt "The capital of"
    python -m fsdp_lab.chat --model_dir TARGET --draft RUN/draft --prompt "What is a glacier?"     # EAGLE-3: faster

Without --prompt it reads prompts line by line until an empty line or the end of the input. With --draft, stderr says
after each answer how many tokens a pass of the model gave, and how fast they came.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.data import TextTokenizer, load_tokenizer
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.models.saved.tokenizers import check_ids, read_tokenizer
from fsdp_lab.settings.models.masked import folder_is_masked
from fsdp_lab.settings.models.saved import ChatConfig, ChatSettings
from fsdp_lab.settings.refusing.early import checked
from fsdp_lab.settings.user_errors import unix_endings, user_errors


@dataclass(frozen=True)
class Continuing:
    """Takes a prompt for the beginning of a document, and prints it with its continuation."""

    tokenizer: TextTokenizer

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return self.tokenizer.eot_id

    def tokens(self, prompt: str) -> list[int]:
        """What the model reads; the start of a document where there is nothing to continue."""
        return self.tokenizer.encode(prompt).tolist() or [self.end]

    def text(self, prompt: list[int], answer: list[int]) -> str:
        """The prompt and its continuation, without the tokens between documents."""
        return self.tokenizer.decode([i for i in prompt + answer if i != self.end])


@dataclass(frozen=True)
class Answering:
    """Takes a prompt for what the user says in a conversation, and prints the answer alone."""

    tokenizer: Any

    @property
    def end(self) -> int:
        """The token that ends a turn."""
        return int(self.tokenizer.eos_token_id)

    def tokens(self, prompt: str) -> list[int]:
        """The conversation so far, up to where the model speaks."""
        turns = [{"role": "user", "content": prompt}]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a stranger's program
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"model_dir: the chat template refuses the prompt: {what}") from None
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def text(self, prompt: list[int], answer: list[int]) -> str:
        """The answer as text, without special tokens."""
        return str(self.tokenizer.decode(answer, skip_special_tokens=True))


def read_by(settings: ChatSettings, folder: Path) -> Continuing | Answering:
    """How the model of ``folder`` is spoken to. ValueError where its tokenizer lacks what is asked for."""
    if settings.chat_template or (settings.chat_template is None and settings.draft is not None):
        tokenizer = read_tokenizer(folder, "model_dir")
        if tokenizer.chat_template is not None and tokenizer.eos_token_id is not None:
            return Answering(tokenizer)
        if settings.chat_template:
            raise ValueError(f"chat_template: the tokenizer of {folder} has none, or no token that ends a turn")
    return Continuing(load_tokenizer(folder))


class Answer(NamedTuple):
    """The new ``tokens``; ``tau``: how many a pass of the model gave, where that was more than one."""

    tokens: list[int]
    tau: float | None = None


Speaker = Callable[[list[int], int], Answer]
"""From a prompt's tokens and the token that ends an answer to the answer's."""


def plainly(model: PreTrainedModel, settings: ChatSettings) -> Speaker:
    """Draw an answer from the model, one pass for each token."""
    # said in full: what is left out is taken from the model's own generation_config.json
    limits = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
    drawing = limits if settings.temperature else {}

    def say(prompt: list[int], end: int) -> Answer:
        ids = torch.tensor([prompt])
        continued = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=settings.temperature > 0,
            max_new_tokens=min(settings.max_new_tokens, _room(model, prompt)),
            pad_token_id=end,
            eos_token_id=end,
            **drawing,
        )
        return Answer(continued[0, len(prompt) :].tolist())

    return say


def with_draft(model: PreTrainedModel, folder: Path, settings: ChatSettings) -> Speaker:
    """Draw an answer with a draft, several tokens a pass. ValueError for a draft of another model."""
    from fsdp_lab.eagle.decoding.chain import Sampling, speculate  # only who has a draft needs its parts
    from fsdp_lab.eagle.draft.folder import load_draft
    from fsdp_lab.eagle.draft.target import Target

    draft = load_draft(folder).float().eval()
    draft.check_target(model.config)
    target = Target(model, draft.shape.layers)

    def say(prompt: list[int], end: int) -> Answer:
        seed = int(torch.randint(2**31, ()))
        sampling = Sampling(settings.temperature, settings.top_k, settings.top_p, seed=seed)
        limit = min(settings.max_new_tokens, _room(model, prompt))
        got = speculate(target, draft, prompt, limit, settings.num_drafts, sampling, [end])
        return Answer(got.tokens, got.tau)

    return say


def _room(model: PreTrainedModel, prompt: list[int]) -> int:
    context = int(model.config.max_position_embeddings)
    if len(prompt) >= context:
        raise ValueError(f"prompt: {len(prompt)} tokens do not fit in the context of {context}")
    return context - len(prompt)


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
        settings = checked(ChatConfig, argv, "fsdp_lab.chat").chat
        if settings.model_dir is None:
            raise ValueError("model_dir: missing; give the folder of a saved model")
        folder = Path(settings.model_dir)
        if folder_is_masked(folder):
            raise ValueError(
                f"model_dir: {folder} is a masked model: it fills gaps and continues no text; give another"
            )
        model = load_pretrained(folder, settings.trust_pickle).eval()
        wording = read_by(settings, folder)
        say = with_draft(model, Path(settings.draft), settings) if settings.draft else plainly(model, settings)
        torch.manual_seed(settings.seed)
        for prompt in prompts(settings):
            tokens, start = wording.tokens(prompt), time.perf_counter()
            check_ids(tokens, model.config.vocab_size, "model_dir")
            answer = say(tokens, wording.end)
            print(wording.text(tokens, answer.tokens), flush=True)
            if answer.tau is not None:
                rate = len(answer.tokens) / (time.perf_counter() - start)
                count = f"{len(answer.tokens)} tokens"
                print(f"[{count}, {answer.tau:.2f} a pass of the model, {rate:.1f} tokens/s]", file=sys.stderr)
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
