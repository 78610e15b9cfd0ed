"""The data of one run: which text, tokenised once, and this rank's batches of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from fsdp_lab.config import OptimConfig, TrainConfig
from fsdp_lab.data import (
    WIKI_LEADS,
    Batches,
    TextTokenizer,
    TokenDataset,
    TokenizedCorpus,
    load_tokenizer,
    prepare,
    validation_batches,
)
from fsdp_lab.distributed import Ranks


@dataclass
class Corpus:
    """Token sequences of both splits, and where the training stream stands."""

    name: str
    tokenizer: TextTokenizer
    tokens: TokenizedCorpus
    batches: Batches
    validation: TokenDataset

    def __post_init__(self) -> None:
        self._stream = self.batches.stream()

    def next_batch(self) -> Tensor:
        """The next training batch of this rank, int64 ``[batch_size, max_length]``; epochs follow each other.

        Where this process plays several ranks, their batches one after the other.
        """
        tokens, _ = next(self._stream)
        return tokens

    def total_steps(self, config: OptimConfig) -> int:
        """Optimizer steps of the run: num_epochs over the data, or max_steps. ValueError when there is not one."""
        epochs = config.num_epochs or 1
        available = self.batches.steps_per_epoch * epochs // config.gradient_accumulation_steps
        if config.max_steps is not None:
            return config.max_steps
        if available == 0:
            raise ValueError(
                f"gradient_accumulation_steps: {config.gradient_accumulation_steps} micro-batches a step, but the data "
                f"has only {self.batches.steps_per_epoch} an epoch"
            )
        return available

    def validation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(tokens, weight) batches: equally many on every rank, every sequence once with weight 1."""
        b = self.batches
        played = range(b.rank, b.rank + b.played)
        return chain.from_iterable(validation_batches(self.validation, b.batch_size, r, b.world_size) for r in played)

    def row(self) -> dict[str, Any]:
        """The data fields of a results row."""
        total = self.tokens.num_tokens("train") + self.tokens.num_tokens("val")
        return {"dataset": self.name, "dataset_tokens": total}


def open_corpus(config: TrainConfig, ranks: Ranks, run_name: str, check: Callable[[], None]) -> Corpus:
    """Tokenise (first rank of each node, the others wait by polling) or find the tokens of an earlier run.

    ``check`` is called while working and waiting; what it raises ends both.
    """
    path = Path(config.data.data_path) if config.data.data_path else WIKI_LEADS
    tokenizer = load_tokenizer(Path(config.model.model_dir) if config.model.model_dir else None)
    tokens = prepare(
        path,
        tokenizer,
        cache_dir(config.data.cache_dir),
        is_builder=ranks.local_rank == 0,
        run_id=f"{run_name}-{os.uname().nodename}",
        val_fraction=config.data.val_fraction,
        progress=ranks.is_first,
        check=check,
    )
    batch_size, max_length = config.optim.batch_size, config.data.max_length
    assert batch_size is not None, "resolved"
    assert max_length is not None, "resolved"
    training = TokenDataset(tokens, "train", max_length)
    return Corpus(
        name=str(path) if config.data.data_path else "wiki-leads (embedded)",
        tokenizer=tokenizer,
        tokens=tokens,
        batches=Batches(training, batch_size, ranks.rank, ranks.world, config.run.seed, ranks.played),
        validation=TokenDataset(tokens, "val", max_length),
    )


def cache_dir(chosen: str | None) -> Path:
    """Where token shards are kept: ``chosen``, or a folder in the user's cache."""
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fsdp-comm-compress" / "tokens"
