"""The data of one training: conversations in an endless order, and how far the training has come in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fsdp_lab.data import RowDigest, digest_of_all
from fsdp_lab.data.chats.examples import Example, Examples, digest_of
from fsdp_lab.eagle.data.tokens import (
    Batch,
    collate,
    load_chat_tokenizer,
    load_examples,
    vocabulary_of,
)
from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.models.saved.tokenizers import check_ids
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.run import Run
from fsdp_lab.settings.groups import OptimConfig

_STEPS = 1000  # where neither max_steps nor num_epochs is given


@dataclass
class Chats:
    """Conversations, shuffled again for each pass over them; the next pass begins within a batch if need be.

    A batch of all ranks is the next ``batch_size`` x ranks conversations; rank r takes every W-th of them, from r on.
    """

    name: str
    tokenizer: Any
    vocabulary: Vocabulary
    examples: Sequence[Example]
    batch_size: int
    micro_batches: int
    ranks: Ranks
    seed: int
    _drawn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._dealt = RowDigest(self.ranks.rank, self.batch_size, self._together, step=self.ranks.world)

    @property
    def _together(self) -> int:
        return self.batch_size * self.ranks.world

    def next_batch(self) -> Batch:
        """The next batch of this rank, with ``batch_size`` conversations."""
        mine = range(self._drawn + self.ranks.rank, self._drawn + self._together, self.ranks.world)
        self._drawn += self._together
        batch = [self._nth(i) for i in mine]
        self._dealt.add([torch.cat([example.tokens, example.said.long()]) for example in batch])
        return collate(batch)

    def tokens_in_step(self, step: int) -> int:
        """Tokens of all ranks in optimizer step ``step`` (from 1), padding left out."""
        size = self._together * self.micro_batches
        return sum(len(self._nth(i).tokens) for i in range((step - 1) * size, step * size))

    def total_steps(self, config: OptimConfig) -> int:
        """Optimizer steps of the run: max_steps, or num_epochs over the conversations."""
        if config.max_steps is not None or config.num_epochs is None:
            return config.max_steps or _STEPS
        return max(1, config.num_epochs * len(self.examples) // (self._together * self.micro_batches))

    def state_dict(self) -> dict[str, Any]:
        """How far the order is after the last batch taken, and of which conversations it is an order, as JSON."""
        order = {"chats": digest_of(self.examples), "seed": self.seed, "drawn": self._drawn}
        return {**order, "digest": self._dealt.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the last conversation before ``state``, on the same number of ranks or on another.

        ValueError where the conversations or their order have changed.
        """
        now = self.state_dict()
        if missing := sorted(now.keys() - state.keys()):
            raise ValueError(f"resume: the saved state of the conversations is of another version: it lacks {missing}")
        if changed := [name for name in ("chats", "seed") if state.get(name) != now[name]]:
            raise ValueError(f"resume: the training data is not what it was: another {', another '.join(changed)}")
        self._drawn = int(state["drawn"])
        self._dealt.load_state_dict(state["digest"])

    def row(self) -> dict[str, Any]:
        """The data fields of a results row."""
        return {"dataset": self.name, "dataset_tokens": sum(len(e.tokens) for e in self.examples)}

    def trained(self, steps: int) -> dict[str, Any]:
        """What a results row says of the data of ``steps`` steps. All ranks call this together."""
        return {"data_digest": digest_of_all(self.ranks.gather(self._dealt.part(steps * self.micro_batches)))}

    def _nth(self, i: int) -> Example:
        epoch, index = divmod(i, len(self.examples))
        return self.examples[_order(len(self.examples), self.seed + epoch)[index]]


@lru_cache(maxsize=4)
def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def open_chats(config: EagleConfig, target: Target, run: Run) -> Chats:
    """The conversations as tokens, and the draft's vocabulary. ValueError for an unusable file."""
    eagle = config.eagle
    tokenizer = load_chat_tokenizer(Path(str(eagle.target_dir)))
    loaded = load_examples(Path(str(eagle.data_path)), tokenizer, min(eagle.max_length, target.max_positions))
    check_ids(loaded.largest_ids(), target.vocab_size, "target_dir")
    vocabulary, origin = _vocabulary(config, loaded, tokenizer, target.vocab_size, run.ranks)
    run.say(f"{len(loaded.examples):,} conversations; the draft knows {vocabulary.draft_size:,} tokens{origin}")
    for line in loaded.skipped.lines():
        run.say(line)
    return Chats(
        name=str(eagle.data_path),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        examples=loaded.examples,
        batch_size=config.optim.batch_size,
        micro_batches=config.optim.gradient_accumulation_steps,
        ranks=run.ranks,
        seed=config.run.seed,
    )


def _vocabulary(
    config: EagleConfig, loaded: Examples, tokenizer: Any, target_size: int, ranks: Ranks
) -> tuple[Vocabulary, str]:
    """The draft's vocabulary and, for a message, whose it is: of ``draft_dir``, of an earlier run, or a new one."""
    eagle, path = config.eagle, Path(config.run.output_dir) / "vocabulary.safetensors"
    is_known = ranks.broadcast(path.exists())
    if eagle.draft_dir:
        weights = Path(eagle.draft_dir) / "model.safetensors"
        return Vocabulary.load(weights, target_size), f" (those of {eagle.draft_dir})"
    if is_known:
        return Vocabulary.load(path, target_size), f" (those of {path})"
    vocabulary, _ = vocabulary_of(loaded, tokenizer, target_size, eagle.draft_vocab_size)
    if ranks.is_first:
        vocabulary.save(path)
    return vocabulary, ""
