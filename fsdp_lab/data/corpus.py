"""The data of one run as the training loop sees it: this rank's batches, and the state that resumes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from fsdp_lab.data import (
    Batches,
    JoinedDataset,
    MixedBatches,
    MixSource,
    RowDigest,
    TextTokenizer,
    digest_of_all,
    validation_batches,
)
from fsdp_lab.data.batches.loader import Batch, Cursor, SequenceDataset
from fsdp_lab.data.batches.streaming.row_order import RowOrderState
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.groups import OptimConfig


@dataclass
class Corpus(ABC):
    """Token sequences of both splits, and where the training stream stands."""

    name: str
    tokenizer: TextTokenizer
    num_tokens: int  # of both splits
    batches: Batches | MixedBatches
    validation: SequenceDataset | JoinedDataset

    def __post_init__(self) -> None:
        b = self.batches
        self._digest = RowDigest(b.rank * b.batch_size, b.played * b.batch_size, b.world_size * b.batch_size)

    @abstractmethod
    def next_batch(self) -> Batch:
        """The next training batch of this rank, ``batch_size`` sequences; epochs follow each other.

        Where this process plays several ranks, it holds their batches one after the other.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands after the last batch taken, and which text and settings it follows from, as JSON.

        All entries but ``digest`` are the same on all ranks.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the last batch before ``state``, on the same number of ranks or on another.

        No sequence is left out or comes twice. Where that is impossible, ValueError names what has changed.
        """

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

    @abstractmethod
    def tokens_in_step(self, step: int, micro_batches: int) -> int:
        """Tokens of all ranks in the ``micro_batches`` batches of optimizer step ``step``, which counts from 1.

        Padding is left out.
        """

    def validation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (tokens, weight): the same number on every rank, and every sequence exactly once with weight 1."""
        b = self.batches
        played = range(b.rank, b.rank + b.played)
        return chain.from_iterable(validation_batches(self.validation, b.batch_size, r, b.world_size) for r in played)

    def row(self) -> dict[str, Any]:
        """The data fields of a results row."""
        return {"dataset": self.name, "dataset_tokens": self.num_tokens}

    def trained(self, ranks: Ranks, batches: int) -> dict[str, Any]:
        """What a results row says of the training stream after ``batches`` batches. All ranks call this together."""
        return {"data_digest": digest_of_all(ranks.gather_over_data(self._digest.part(batches)))}


@dataclass
class OneCorpus(Corpus):
    """One corpus, whose sequences are shuffled again in every epoch."""

    batches: Batches

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start(Cursor(epoch=0, step=0))

    def _start(self, cursor: Cursor) -> None:
        self._cursor, self._stream = cursor, self.batches.stream(cursor)

    def next_batch(self) -> Batch:
        """Draw from the shuffled sequences; after the last one a new epoch begins in another order."""
        batch, self._cursor = next(self._stream)
        self._digest.add(batch.rows)
        return batch

    def tokens_in_step(self, step: int, micro_batches: int) -> int:
        """As the sequences of those batches hold, where all steps so far had as many batches of this size."""
        return sum(self.batches.tokens_in(number) for number in range((step - 1) * micro_batches, step * micro_batches))

    def state_dict(self) -> dict[str, Any]:
        """Which corpus, how it is split into batches, and how many batches of which epoch were drawn."""
        b = self.batches
        identity = {"corpus": b.dataset.identity, "max_length": b.dataset.max_length, "seed": b.seed}
        split = {"batch_size": b.batch_size, "world_size": b.world_size}
        return {**identity, **self._cursor, **split, "digest": self._digest.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after ``state``, if a global batch (batch_size x ranks) of now begins where its last one ended."""
        now = self.state_dict()
        if missing := sorted(now.keys() - state.keys()):
            raise ValueError(f"resume: the saved state of the data is not one of a single corpus: it lacks {missing}")
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
        self._digest.load_state_dict(state["digest"])


@dataclass
class MixedCorpus(Corpus):
    """Several corpora, each with its share of the tokens (`fsdp_lab.data.batches.streaming`).

    ``rows_per_step``: sequences of all ranks in one optimiser step. ``say`` is told when a corpus begins again.
    """

    batches: MixedBatches
    sources: Sequence[MixSource]
    rows_per_step: int
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state, self._stream = self.batches.order().state(), self.batches.stream()

    def next_batch(self) -> Batch:
        """Draw from the sources by their shares, and say so when one of them begins again."""
        tokens, state = next(self._stream)
        self._say_what_ran_out(state)
        self._state = state
        tokens = tokens[..., 0]  # the model shifts its targets itself
        self._digest.add(tokens)
        return Batch(tokens, self.batches.batch_size * (self.batches.max_length - 1))

    def tokens_in_step(self, step: int, micro_batches: int) -> int:
        """All positions: nothing is padded."""
        return self.batches.batch_size * self.batches.world_size * self.batches.max_length * micro_batches

    def state_dict(self) -> dict[str, Any]:
        """Which sources at which shares, and where each of them stands."""
        b = self.batches
        return {
            "stream": self._state,
            "made_of": self._made_of(),
            "world_size": b.world_size,
            "batch_size": b.batch_size,
            "digest": self._digest.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after ``state``. The number of ranks may differ, but not how many sequences a step takes."""
        try:
            was, stream, digest = state["made_of"], state["stream"], state["digest"]
            differing = [
                f"{name} was {was.get(name)!r}, is {now!r}" for name, now in self._made_of().items() if was[name] != now
            ]
            if differing:
                advice = "give the settings and the text it was saved with, or start a new run"
                raise ValueError(f"the data cannot go on where it was: {'; '.join(differing)}; {advice}")
            self._stream = self.batches.stream(stream)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"the saved state of the data is damaged, or not one of a --data_mix ({error!r})"
            ) from None
        self._state = stream
        self._digest.load_state_dict(digest)

    def trained(self, ranks: Ranks, batches: int) -> dict[str, Any]:
        """The same, and beside each source's weight the tokens that it really gave."""
        drawn = self._state["tokens_drawn"]
        by_source = {
            source.name: {
                "weight": source.share,
                "share": tokens / sum(drawn),
                "tokens": tokens,
                "epochs": tokens / source.tokens.num_tokens("train"),
            }
            for source, tokens in zip(self.sources, drawn, strict=True)
        }
        return {**super().trained(ranks, batches), "data_sources": by_source}

    def _made_of(self) -> dict[str, Any]:
        b = self.batches
        return {
            "sources": [[source.tokens.meta.settings.key, source.share] for source in self.sources],
            "max_length": b.max_length,
            "n_views": b.n_views,
            "seed": b.seed,
            "shuffle_documents": b.shuffle_documents,
            "shuffle_rows": b.shuffle_rows,
            "sequences a step (batch_size x ranks x gradient_accumulation_steps)": self.rows_per_step,
        }

    def _say_what_ran_out(self, state: RowOrderState) -> None:
        # after the first pass, the second, the fourth, ...: a small source among large ones would never be quiet
        passes = ([s["passes"] for s in of["sources"]] for of in (self._state, state))
        for source, before, now in zip(self.sources, *passes, strict=True):
            if before.bit_length() < now.bit_length():
                self.say(f"data_mix: all of {source.name} was dealt {now} times; it begins again")
