"""The data room: a text file becomes token shards, shards become batches.

tokenizer = load_tokenizer()                                       # GPT-2's, or a model folder's
corpus = prepare(path, tokenizer, cache_dir, is_builder=rank == 0, run_id=run_id)
batches = Batches(TokenDataset(corpus, "train", max_length=512), batch_size=8, rank=rank, world_size=2, seed=0)

Several corpora by weight: `batches/mix.py` opens them, `batches/streaming/` makes their batches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdp_lab.data.batches.loader import (
        Batches,
        JoinedDataset,
        TokenDataset,
        num_validation_batches,
        steps_per_epoch,
        validation_batches,
    )
    from fsdp_lab.data.batches.mix import MixSource, open_sources, validation_sequences
    from fsdp_lab.data.batches.row_digest import RowDigest, digest_of_all
    from fsdp_lab.data.batches.streaming.batches import MixedBatches
    from fsdp_lab.data.reading.documents import Document, read_documents
    from fsdp_lab.data.sources.embedded_corpus import GPT2_MERGES, WIKI_LEADS
    from fsdp_lab.data.tokens.ranks import prepare
    from fsdp_lab.data.tokens.shards import TokenizedCorpus
    from fsdp_lab.data.tokens.token_stream import TokenStream
    from fsdp_lab.data.tokens.tokenization import tokenize
    from fsdp_lab.data.tokens.tokenizer import TextTokenizer, load_tokenizer
    from fsdp_lab.files.errors import DataError

# Only the loader needs torch and only the tokenizer needs tokenizers: import each when it is asked for, so that
# tokenising and the corpus tools start at once and stay small.
_HOME = {
    "Document": "reading.documents",
    "read_documents": "reading.documents",
    "GPT2_MERGES": "sources.embedded_corpus",
    "WIKI_LEADS": "sources.embedded_corpus",
    "Batches": "batches.loader",
    "JoinedDataset": "batches.loader",
    "TokenDataset": "batches.loader",
    "num_validation_batches": "batches.loader",
    "steps_per_epoch": "batches.loader",
    "validation_batches": "batches.loader",
    "MixSource": "batches.mix",
    "open_sources": "batches.mix",
    "validation_sequences": "batches.mix",
    "prepare": "tokens.ranks",
    "RowDigest": "batches.row_digest",
    "digest_of_all": "batches.row_digest",
    "TokenizedCorpus": "tokens.shards",
    "MixedBatches": "batches.streaming.batches",
    "TokenStream": "tokens.token_stream",
    "tokenize": "tokens.tokenization",
    "TextTokenizer": "tokens.tokenizer",
    "load_tokenizer": "tokens.tokenizer",
}

__all__ = [  # noqa: RUF022 (in the order of the story above)
    "WIKI_LEADS",
    "GPT2_MERGES",
    "DataError",
    "Document",
    "read_documents",
    "TextTokenizer",
    "load_tokenizer",
    "TokenizedCorpus",
    "tokenize",
    "prepare",
    "TokenDataset",
    "Batches",
    "steps_per_epoch",
    "JoinedDataset",
    "validation_batches",
    "num_validation_batches",
    "MixSource",
    "open_sources",
    "validation_sequences",
    "TokenStream",
    "MixedBatches",
    "RowDigest",
    "digest_of_all",
]


def __getattr__(name: str) -> Any:
    if name == "DataError":
        return import_module("fsdp_lab.files.errors").DataError
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
