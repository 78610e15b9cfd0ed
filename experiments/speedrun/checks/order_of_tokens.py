"""Did a run see the sequences of the task's text in the order of its seed? They are put in order again here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cache
from itertools import islice

from experiments.speedrun.entry import Entry
from experiments.speedrun.task import ENTRY
from fsdp_lab.data import (
    WIKI_LEADS,
    Batches,
    RowDigest,
    TokenDataset,
    TokenizedCorpus,
    digest_of_all,
    load_tokenizer,
    prepare,
)
from fsdp_lab.files.user_cache import cache_dir


def complaints(entry: Entry) -> Iterator[str]:
    """Rows whose digest of all sequences, in order, is not that of the text; of the validation split its tokens."""
    fixed, ranks = entry.task.fixed, entry.race.ranks
    for row in entry.rows:
        if row["status"] != "ok":
            continue
        settings = entry.race.settings(entry.arm_of(row) or ENTRY)
        rows = settings["batch_size"] * ranks
        batches = settings["max_steps"] * settings["gradient_accumulation_steps"]
        wanted = _digest(fixed["vocab_size"], fixed["val_fraction"], fixed["max_length"], row["seed"], rows, batches)
        if row.get("data_digest") != wanted:
            yield f"{row['run_name']}: not trained on the task's sequences in the order of its seed (data_digest)"
        tokens = _validation_tokens(fixed["vocab_size"], fixed["val_fraction"], fixed["max_length"])
        if row.get("val_tokens") != tokens:
            yield f"{row['run_name']}: {row.get('val_tokens')} validation tokens, the task's split has {tokens}"


@cache
def _digest(vocab_size: int, val_fraction: float, length: int, seed: int, rows: int, batches: int) -> str | None:
    dataset = TokenDataset(_tokens(vocab_size, val_fraction), "train", length)
    digest = RowDigest(0, rows, rows)
    for batch, _ in islice(Batches(dataset, rows, 0, 1, seed).stream(), batches):
        digest.add(batch.rows)
    return digest_of_all([digest.part(batches)])


@cache
def _validation_tokens(vocab_size: int, val_fraction: float, length: int) -> int:
    return len(TokenDataset(_tokens(vocab_size, val_fraction), "val", length)) * (length - 1)


@cache
def _tokens(vocab_size: int, val_fraction: float) -> TokenizedCorpus:
    """The embedded text as tokens, from the user's cache, or tokenised now (seconds)."""
    return prepare(
        WIKI_LEADS,
        load_tokenizer(vocab_size=vocab_size),
        cache_dir(None),
        is_builder=True,
        run_id=f"speedrun-{uuid.uuid4().hex[:12]}",
        val_fraction=val_fraction,
        progress=False,
    )
