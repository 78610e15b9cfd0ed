"""Which text a run trains on."""

from dataclasses import dataclass
from typing import Any

from fsdp_lab.settings.reading.fields import Settings, setting


@dataclass(frozen=True)
class DataConfig(Settings):
    """Which text the run trains on, and how it becomes batches."""

    data_path: str | None = setting(
        None,
        "JSON array or JSON lines of {id, title, text}, also .gz; none: the embedded Wikipedia corpus",
        exists=("file",),
    )
    data_format: str = setting(
        "documents",
        "what data_path holds: documents, of which all tokens are predicted, or conversations (JSON lines in "
        "ShareGPT's or OpenAI's format, also .gz), of which the assistant's answers are "
        "(docs/trainer/instruction-tuning.md)",
        choices=("documents", "conversations"),
    )
    data_mix: dict[str, Any] = setting(  # noqa: RUF009 - a new dict each
        {},
        "several corpora in place of data_path, {path: weight}, weights as shares of tokens; a path is a file as "
        "data_path takes, a folder of token shards, or the word embedded",
    )
    shuffle_documents: int = setting(16384, "data_mix: documents of a source that are shuffled at a time", at_least=1)
    shuffle_rows: int = setting(1024, "data_mix: packed sequences that are shuffled at a time", at_least=1)
    data_prefetch: int = setting(
        4, "data_mix: batches read ahead in the background", at_least=1, affects_training=False
    )
    max_length: int | None = setting(None, "tokens in a sequence; none: the preset's", at_least=2)
    val_fraction: float = setting(0.02, "share of the corpus held out for validation", above=0, below=1)
    cache_dir: str | None = setting(
        None, "folder for tokenised data; none: one in the user's cache", affects_training=False
    )
