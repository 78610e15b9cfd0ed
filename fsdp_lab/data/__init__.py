"""The data of a run: a text file becomes token shards, and shards become batches.

Read `corpus` first (what the training loop sees), then `opening` (how it is made). In short:

tokenizer = load_tokenizer()                                       # GPT-2's, or a model folder's
corpus = prepare(path, tokenizer, cache_dir, is_builder=rank == 0, run_id=run_id)
batches = Batches(TokenDataset(corpus, "train", max_length=512), batch_size=8, rank=rank, world_size=2, seed=0)

`reading` reads documents, `tokens` turns them into shards, `batches` deals the shards' tokens to the ranks. Several
corpora by weight: `batches/mix.py` opens them, `batches/streaming/` makes their batches. Conversations are `chats`'.
`sources`, `build` and `download_wikipedia` make corpora.
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
    from fsdp_lab.data.sources.embedded_files import GPT2_MERGES, WIKI_LEADS
    from fsdp_lab.data.tokens.preparing import prepare
    from fsdp_lab.data.tokens.shards import TokenizedCorpus
    from fsdp_lab.data.tokens.token_stream import TokenStream
    from fsdp_lab.data.tokens.tokenization import tokenize
    from fsdp_lab.data.tokens.tokenizer import TextTokenizer, load_tokenizer
    from fsdp_lab.files.errors import DataError

# Only the loader needs torch and only the tokenizer needs tokenizers: import each when it is asked for, so that
# tokenising and the corpus tools start at once and stay small.
_MODULE_OF = {
    "Document": "fsdp_lab.data.reading.documents",
    "read_documents": "fsdp_lab.data.reading.documents",
    "GPT2_MERGES": "fsdp_lab.data.sources.embedded_files",
    "WIKI_LEADS": "fsdp_lab.data.sources.embedded_files",
    "Batches": "fsdp_lab.data.batches.loader",
    "JoinedDataset": "fsdp_lab.data.batches.loader",
    "TokenDataset": "fsdp_lab.data.batches.loader",
    "num_validation_batches": "fsdp_lab.data.batches.loader",
    "steps_per_epoch": "fsdp_lab.data.batches.loader",
    "validation_batches": "fsdp_lab.data.batches.loader",
    "MixSource": "fsdp_lab.data.batches.mix",
    "open_sources": "fsdp_lab.data.batches.mix",
    "validation_sequences": "fsdp_lab.data.batches.mix",
    "prepare": "fsdp_lab.data.tokens.preparing",
    "RowDigest": "fsdp_lab.data.batches.row_digest",
    "digest_of_all": "fsdp_lab.data.batches.row_digest",
    "TokenizedCorpus": "fsdp_lab.data.tokens.shards",
    "MixedBatches": "fsdp_lab.data.batches.streaming.batches",
    "TokenStream": "fsdp_lab.data.tokens.token_stream",
    "tokenize": "fsdp_lab.data.tokens.tokenization",
    "TextTokenizer": "fsdp_lab.data.tokens.tokenizer",
    "load_tokenizer": "fsdp_lab.data.tokens.tokenizer",
    "DataError": "fsdp_lab.files.errors",
}

__all__ = [  # noqa: RUF022 (in the order of the steps above)
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
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
