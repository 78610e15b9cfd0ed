"""The data room: a text file becomes token shards, shards become batches.

tokenizer = load_tokenizer()                                       # GPT-2's, or a model folder's
corpus = prepare(path, tokenizer, cache_dir, is_builder=rank == 0, run_id=run_id)
batches = Batches(TokenDataset(corpus, "train", max_length=512), batch_size=8, rank=rank, world_size=2, seed=0)

Several corpora by weight: `mix.py` opens them, `streaming/` makes their batches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdp_lab.data.documents import Document, read_documents
    from fsdp_lab.data.embedded_corpus import GPT2_MERGES, WIKI_LEADS
    from fsdp_lab.data.errors import DataError
    from fsdp_lab.data.loader import (
        Batches,
        JoinedDataset,
        TokenDataset,
        num_validation_batches,
        steps_per_epoch,
        validation_batches,
    )
    from fsdp_lab.data.mix import MixSource, open_sources, validation_sequences
    from fsdp_lab.data.ranks import prepare
    from fsdp_lab.data.row_digest import RowDigest, digest_of_all
    from fsdp_lab.data.shards import TokenizedCorpus
    from fsdp_lab.data.streaming.batches import MixedBatches
    from fsdp_lab.data.token_stream import TokenStream
    from fsdp_lab.data.tokenization import tokenize
    from fsdp_lab.data.tokenizer import TextTokenizer, load_tokenizer

# Only the loader needs torch and only the tokenizer needs tokenizers: import each when it is asked for, so that
# tokenising and the corpus tools start at once and stay small.
_HOME = {
    "Document": "documents",
    "read_documents": "documents",
    "GPT2_MERGES": "embedded_corpus",
    "WIKI_LEADS": "embedded_corpus",
    "DataError": "errors",
    "Batches": "loader",
    "JoinedDataset": "loader",
    "TokenDataset": "loader",
    "num_validation_batches": "loader",
    "steps_per_epoch": "loader",
    "validation_batches": "loader",
    "MixSource": "mix",
    "open_sources": "mix",
    "validation_sequences": "mix",
    "prepare": "ranks",
    "RowDigest": "row_digest",
    "digest_of_all": "row_digest",
    "TokenizedCorpus": "shards",
    "MixedBatches": "streaming.batches",
    "TokenStream": "token_stream",
    "tokenize": "tokenization",
    "TextTokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
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
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
