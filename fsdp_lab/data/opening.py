"""Opening the data of one run: text is tokenised once, conversations anew, and a `Corpus` deals batches of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from fsdp_lab.data import (
    WIKI_LEADS,
    Batches,
    MixedBatches,
    MixSource,
    TextTokenizer,
    TokenDataset,
    TokenizedCorpus,
    TokenStream,
    load_tokenizer,
    open_sources,
    prepare,
    validation_sequences,
)
from fsdp_lab.data.batches.masked.dataset import MaskedDataset, Masking
from fsdp_lab.data.chats.conversations import Skipped
from fsdp_lab.data.chats.dataset import ConversationDataset, split_examples
from fsdp_lab.data.chats.examples import load_examples, read_chat_tokenizer
from fsdp_lab.data.corpus import Corpus, MixedCorpus, OneCorpus
from fsdp_lab.data.tokens.gpt2 import VOCAB_SIZE
from fsdp_lab.data.tokens.shards import SplitName
from fsdp_lab.files.errors import DataError
from fsdp_lab.files.user_cache import cache_dir
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import ModelConfig
from fsdp_lab.settings.models.masked import is_masked
from fsdp_lab.settings.refusing.early import MIXED_PAIRS


def open_corpus(config: TrainConfig, ranks: Ranks, run_name: str, check: Callable[[], None]) -> Corpus:
    """The corpus of ``config``.

    Text is tokenised now by the first rank of each node (the others poll), or was by an earlier run; conversations are
    tokenised by every rank.
    ``check`` is called while working and waiting; what it raises ends both.
    """
    tokenizer = _tokenizer(config.model)
    if config.data.data_format == "conversations":
        return _conversations(config, ranks, tokenizer, check)
    masking = Masking.of(tokenizer) if is_masked(config.model) else None
    if masking is not None and config.data.data_mix:
        raise DataError(MIXED_PAIRS)
    tokenise = partial(
        prepare,
        tokenizer=tokenizer,
        cache_dir=cache_dir(config.data.cache_dir),
        is_builder=ranks.local_rank == 0,
        val_fraction=config.data.val_fraction,
        progress=ranks.is_first,
        check=check,
    )
    start = ranks.broadcast(uuid.uuid4().hex[:12])  # the same run may have been started before, and left its last word
    run_id = f"{run_name}-{start}-{os.uname().nodename}"
    if config.data.data_mix:
        sources = open_sources(
            config.data.data_mix,
            tokenizer,
            config.data.val_fraction,
            lambda number, path: tokenise(path, run_id=f"{run_id}-{number}"),
        )
        return _mixed(config, ranks, tokenizer, sources)
    path = Path(config.data.data_path) if config.data.data_path else WIKI_LEADS
    tokens = tokenise(path, run_id=run_id)
    batch_size, max_length = _resolved(config)
    training = sequences(tokens, "train", max_length, masking, config.run.seed)
    return OneCorpus(
        name=str(path) if config.data.data_path else "wiki-leads (embedded)",
        tokenizer=tokenizer,
        num_tokens=tokens.num_tokens("train") + tokens.num_tokens("val"),
        batches=Batches(training, batch_size, ranks.data_rank, ranks.data_world, config.run.seed, ranks.played),
        validation=sequences(tokens, "val", max_length, masking),
    )


def sequences(
    tokens: TokenizedCorpus, split: SplitName, max_length: int, masking: Masking | None, seed: int = 0
) -> TokenDataset:
    """The sequences of a split, for a masked model where there is ``masking``; its ``seed`` draws the masks.

    Validation leaves ``seed`` out: its masks are the same in every run.
    """
    if masking is None:
        return TokenDataset(tokens, split, max_length)
    return MaskedDataset(tokens, split, max_length, masking, seed)


def _mixed(config: TrainConfig, ranks: Ranks, tokenizer: TextTokenizer, sources: Sequence[MixSource]) -> MixedCorpus:
    batch_size, max_length = _resolved(config)
    batches = MixedBatches(
        [TokenStream(source.tokens, "train") for source in sources],
        [source.share for source in sources],
        max_length=max_length,
        batch_size=batch_size,
        rank=ranks.data_rank,
        world_size=ranks.data_world,
        seed=config.run.seed,
        shuffle_documents=config.data.shuffle_documents,
        shuffle_rows=config.data.shuffle_rows,
        played=ranks.played,
        prefetch=config.data.data_prefetch,
    )
    return MixedCorpus(
        name="mix of " + ", ".join(f"{100 * source.share:.3g} % {source.name}" for source in sources),
        tokenizer=tokenizer,
        num_tokens=sum(source.tokens.num_tokens("train") + source.tokens.num_tokens("val") for source in sources),
        batches=batches,
        validation=validation_sequences(sources, max_length),
        sources=sources,
        rows_per_step=batch_size * ranks.data_world * config.optim.gradient_accumulation_steps,
        say=tqdm.write if ranks.is_first else lambda text: None,
    )


def conversations(
    path: Path, model_dir: Path, max_length: int, val_fraction: float, check: Callable[[], None] = lambda: None
) -> tuple[ConversationDataset, ConversationDataset, Skipped]:
    """The conversations of ``path`` to train on, those held out, and which were left out.

    They are read by the tokenizer and chat template of ``model_dir`` and cut to ``max_length`` tokens. ``check`` is
    called while reading; what it raises ends it. ValueError for an unusable file or folder.
    """
    loaded = load_examples(path, read_chat_tokenizer(model_dir, "model_dir"), max_length, check=check)
    training, held_out = split_examples(loaded.examples, val_fraction)
    to_train_on = ConversationDataset(training, "train", max_length)
    return to_train_on, ConversationDataset(held_out, "val", max_length), loaded.skipped


def _conversations(config: TrainConfig, ranks: Ranks, tokenizer: TextTokenizer, check: Callable[[], None]) -> OneCorpus:
    """Every rank reads them for itself (two thousand take it some seconds), and they compare what they have read."""
    batch_size, max_length = _resolved(config)
    path, folder = Path(str(config.data.data_path)), Path(str(config.model.model_dir))
    training, held_out, skipped = conversations(path, folder, max_length, config.data.val_fraction, check)
    if len(set(ranks.gather(training.identity + held_out.identity))) > 1:
        raise DataError(
            f"data_path: {path} does not hold the same conversations for all ranks; copy it to every machine"
        )
    for line in skipped.lines() if ranks.is_first else ():
        tqdm.write(line)
    return OneCorpus(
        name=str(path),
        tokenizer=tokenizer,
        num_tokens=training.num_tokens + held_out.num_tokens,
        batches=Batches(training, batch_size, ranks.data_rank, ranks.data_world, config.run.seed, ranks.played),
        validation=held_out,
    )


def _resolved(config: TrainConfig) -> tuple[int, int]:
    """Sequences of a batch and tokens of a sequence."""
    batch_size, max_length = config.optim.batch_size, config.data.max_length
    assert batch_size is not None, "resolved"
    assert max_length is not None, "resolved"
    return batch_size, max_length


def _tokenizer(model: ModelConfig) -> TextTokenizer:
    if model.model_dir is not None:
        return load_tokenizer(Path(model.model_dir))
    masked = is_masked(model)
    return load_tokenizer(vocab_size=model.vocab_size or VOCAB_SIZE, masked=masked)
