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
from fsdp_lab.data.loader import Cursor
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
        self._start(Cursor(epoch=0, step=0))

    def _start(self, cursor: Cursor) -> None:
        self._cursor, self._stream = cursor, self.batches.stream(cursor)

    def next_batch(self) -> Tensor:
        """The next training batch of this rank, int64 ``[batch_size, max_length]``; epochs follow each other.

        Where this process plays several ranks, their batches one after the other.
        """
        tokens, self._cursor = next(self._stream)
        return tokens

    def state_dict(self) -> dict[str, Any]:
        """Where the stream of training batches stands (JSON), and what it is a stream of."""
        b = self.batches
        identity = {"corpus": b.dataset.folder.name, "max_length": b.dataset.max_length, "seed": b.seed}
        return {**identity, **self._cursor, "batch_size": b.batch_size, "world_size": b.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batches that ``state`` has seen, on as many ranks as then or on others.

        No sequence of an epoch is left out or comes twice. ValueError where that cannot be: for other data, and where
        the global batches of this split (batch_size x ranks) do not begin where the others ended.
        """
        now = self.state_dict()
        for key in ("corpus", "max_length", "seed"):
            if state[key] != now[key]:
                raise ValueError(f"resume: the training data is not what it was: {key} was {state[key]}, is {now[key]}")
        drawn = state["step"] * state["batch_size"] * state["world_size"]
        step, rest = divmod(drawn, now["batch_size"] * now["world_size"])
        if rest:
            raise ValueError(
                f"resume: {drawn} sequences of epoch {state['epoch']} are used, and batches of {now['batch_size']} on "
                f"{now['world_size']} ranks do not begin there: give a batch_size so that batch_size x ranks is "
                f"{state['batch_size'] * state['world_size']}, as before, or divides {drawn}"
            )
        self._start(Cursor(epoch=state["epoch"], step=min(step, self.batches.steps_per_epoch)))

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
