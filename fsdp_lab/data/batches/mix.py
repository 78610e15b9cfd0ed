"""The corpora that a mix (``--data_mix``) consists of, opened as tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_lab.data.batches.loader import JoinedDataset, TokenDataset
from fsdp_lab.data.sources.embedded_files import WIKI_LEADS
from fsdp_lab.data.tokens.shards import TokenizedCorpus
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.shares import shares

EMBEDDED = "embedded"


@dataclass(frozen=True)
class MixSource:
    """One corpus of a mix. ``share``: which fraction of the mix's tokens comes from it; all shares add up to 1."""

    name: str
    share: float
    tokens: TokenizedCorpus


def open_sources(
    mix: Mapping[str, Any],
    tokenizer: TextTokenizer,
    val_fraction: float,
    tokenise: Callable[[int, Path], TokenizedCorpus],
) -> list[MixSource]:
    """The sources of ``mix`` with their tokens, sorted by name.

    A name is the path of a text file, which ``tokenise(number of the source, path)`` turns into tokens, or of a folder
    of token shards, or the word ``embedded``. Raises DataError for paths that are neither, for folders of another
    tokenizer or ``val_fraction``, and for two names of the same text.
    """
    sources: list[MixSource] = []
    for number, (name, share) in enumerate(shares(mix).items()):
        path = WIKI_LEADS if name == EMBEDDED else Path(name)
        tokens = _of_folder(path, tokenizer, val_fraction) if path.is_dir() else tokenise(number, path)
        twin = next((s.name for s in sources if s.tokens.meta.settings.key == tokens.meta.settings.key), None)
        if twin is not None:
            raise DataError(f"data_mix: {name!r} and {twin!r} are the same text; name it once, with one weight")
        if not tokens.num_tokens("train"):
            raise DataError(f"data_mix: {name!r} has no training tokens; lower --val_fraction or leave it out")
        sources.append(MixSource(name, share, tokens))
    return sources


def _of_folder(folder: Path, tokenizer: TextTokenizer, val_fraction: float) -> TokenizedCorpus:
    tokens = TokenizedCorpus.open(folder, vocab_size=tokenizer.vocab_size)
    settings = tokens.meta.settings
    if settings.tokenizer != tokenizer.fingerprint:
        raise DataError(f"data_mix: {folder} holds tokens of another tokenizer than the model's; give the text instead")
    if settings.val_fraction != val_fraction:
        raise DataError(
            f"data_mix: {folder} holds out {settings.val_fraction} of its text; give --val_fraction "
            f"{settings.val_fraction}, or the text instead of the folder"
        )
    return tokens


def validation_sequences(sources: Sequence[MixSource], max_length: int) -> JoinedDataset:
    """The held-out sequences of all sources, source by source. DataError names a source that has none."""
    datasets = []
    for source in sources:
        try:
            datasets.append(TokenDataset(source.tokens, "val", max_length))
        except DataError as error:
            raise DataError(f"data_mix: {source.name}: {error}") from None
    return JoinedDataset(datasets)
