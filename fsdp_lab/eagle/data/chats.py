"""The data of one training: conversations in an order that goes on for ever, and where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fsdp_lab.data import RowDigest, digest_of_all
from fsdp_lab.eagle.data.tokens import Batch, Example, collate, load_chat_tokenizer, load_examples, vocabulary_of
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
    """Conversations, shuffled anew each pass; the passes follow each other without a gap.

    A batch of all ranks is the next ``batch_size`` x ranks of them, whatever the split; rank r takes every W-th.
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
        """This rank's next ``batch_size`` conversations."""
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
        """Where the order stands after the last batch taken, and what it is an order of; JSON-able."""
        order = {"chats": _digest(self.examples), "seed": self.seed, "drawn": self._drawn}
        return {**order, "digest": self._dealt.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the last conversation that ``state`` saw, on as many ranks as then or on others.

        ValueError where the conversations, or their order, are not what they were.
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
        """What a results row says of what was trained on in ``steps`` steps; collective."""
        return {"data_digest": digest_of_all(self.ranks.gather(self._dealt.part(steps * self.micro_batches)))}

    def _nth(self, i: int) -> Example:
        epoch, place = divmod(i, len(self.examples))
        return self.examples[_order(len(self.examples), self.seed + epoch)[place]]


@lru_cache(maxsize=4)
def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _digest(examples: Sequence[Example]) -> str:
    found = hashlib.sha256()
    for example in examples:
        found.update(len(example.tokens).to_bytes(8, "little"))
        found.update(example.tokens.numpy().tobytes() + example.said.numpy().tobytes())
    return found.hexdigest()


def open_chats(config: EagleConfig, target: Target, run: Run) -> Chats:
    """The conversations as tokens, and which of the target's the draft knows. ValueError for an unusable file."""
    eagle, ranks = config.eagle, run.ranks
    tokenizer = load_chat_tokenizer(Path(str(eagle.target_dir)))
    found = load_examples(Path(str(eagle.data_path)), tokenizer, min(eagle.max_length, target.max_positions))
    check_ids(found.largest_ids(), target.vocab_size, "target_dir")
    path = Path(config.run.output_dir) / "vocabulary.safetensors"
    is_known = ranks.broadcast(path.exists())
    if eagle.draft_dir:
        vocabulary = Vocabulary.load(Path(eagle.draft_dir) / "model.safetensors", target.vocab_size)
    elif is_known:
        vocabulary = Vocabulary.load(path, target.vocab_size)
    else:
        vocabulary, _ = vocabulary_of(found, tokenizer, target.vocab_size, eagle.draft_vocab_size)
        if ranks.is_first:
            vocabulary.save(path)
    origin = f" (those of {eagle.draft_dir or path})" if eagle.draft_dir or is_known else ""
    run.say(f"{len(found.examples):,} conversations; the draft knows {vocabulary.draft_size:,} tokens{origin}")
    for line in found.skipped.lines():
        run.say(line)
    return Chats(
        name=str(eagle.data_path),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        examples=found.examples,
        batch_size=config.optim.batch_size,
        micro_batches=config.optim.gradient_accumulation_steps,
        ranks=ranks,
        seed=config.run.seed,
    )
