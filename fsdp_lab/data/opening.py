"""Opening the data of one run: its text is tokenised once, and a `Corpus` deals this rank's batches of it."""

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
    """The corpus of ``config``: tokenised now by the first rank of each node (the others poll), or by an earlier run.

    ``check`` is called while working and waiting; what it raises ends both.
    """
    tokenizer = _tokenizer(config.model)
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
    batch_size, max_length = config.optim.batch_size, config.data.max_length
    assert batch_size is not None, "resolved"
    assert max_length is not None, "resolved"
    training = sequences(tokens, "train", max_length, masking, config.run.seed)
    return OneCorpus(
        name=str(path) if config.data.data_path else "wiki-leads (embedded)",
        tokenizer=tokenizer,
        tokens=[tokens],
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
    batch_size, max_length = config.optim.batch_size, config.data.max_length
    assert batch_size is not None, "resolved"
    assert max_length is not None, "resolved"
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
        tokens=[source.tokens for source in sources],
        batches=batches,
        validation=validation_sequences(sources, max_length),
        sources=sources,
        rows_per_step=batch_size * ranks.data_world * config.optim.gradient_accumulation_steps,
        say=tqdm.write if ranks.is_first else lambda text: None,
    )


def _tokenizer(model: ModelConfig) -> TextTokenizer:
    if model.model_dir is not None:
        return load_tokenizer(Path(model.model_dir))
    masked = is_masked(model)
    return load_tokenizer(vocab_size=model.vocab_size or VOCAB_SIZE, masked=masked)
