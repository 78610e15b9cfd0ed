"""The tokens that a masked model needs beside text, and what else it must know of a vocabulary.

GPT-2's tokenizer gets them after its last id (`gpt2.with_special_tokens`); a BERT folder's has them already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError

_ENDS = (".", "!", "?", '."', '!"', '?"', ".)", "\n")  # of texts of tokens after which a sentence may begin


class SpecialIds(NamedTuple):
    """The ids of a masked model's own tokens."""

    pad: int
    cls: int
    sep: int
    mask: int


def special_ids(tokenizer: TextTokenizer) -> SpecialIds:
    """The ids of [PAD], [CLS], [SEP] and [MASK]. DataError names one that the tokenizer lacks."""
    ids = {}
    for name in SpecialIds._fields:
        token = f"[{name.upper()}]"
        number = tokenizer.core.token_to_id(token)
        if number is None:
            raise DataError(f"model_dir: its tokenizer has no {token}, which a masked model needs; give a BERT")
        ids[name] = int(number)
    return SpecialIds(**ids)


def ordinary_ids(tokenizer: TextTokenizer) -> npt.NDArray[np.int64]:
    """All ids that stand for text, ascending."""
    special = {number for number, token in tokenizer.core.get_added_tokens_decoder().items() if token.special}
    ids = set(tokenizer.core.get_vocab(with_added_tokens=True).values()) - special
    return np.array(sorted(ids), dtype=np.int64)


def ends_of_sentences(tokenizer: TextTokenizer) -> npt.NDArray[np.bool_]:
    """For each id, does its text end as sentences do: with a full stop, a question mark, a line? By the text alone."""
    ends = np.zeros(tokenizer.vocab_size, dtype=bool)
    ids = ordinary_ids(tokenizer).tolist()
    texts = tokenizer.core.decode_batch([[number] for number in ids])
    ends[[number for number, text in zip(ids, texts, strict=True) if text.endswith(_ENDS)]] = True
    return ends
