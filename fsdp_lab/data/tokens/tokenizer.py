"""Text to token ids and back: GPT-2's tokenizer, or the one of a local Hugging Face model folder."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from fsdp_lab.data.tokens import gpt2
from fsdp_lab.files.atomic import write_bytes, write_json
from fsdp_lab.files.errors import DataError

TokenArray = npt.NDArray[Any]
"""Token ids, 1-D, uint16 or uint32."""

_FOLDER_FILES = (  # what a Hugging Face tokenizer may consist of
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


class TextTokenizer:
    """A tokenizer with what training needs to know about it. It adds no special tokens by itself.

    vocab_size: number of ids, added tokens included: the size an embedding needs.
    eot_id: the id that ends a document.
    dtype: uint16 if every id fits, else uint32.
    fingerprint: SHA-256 (hexadecimal) of the tokenizer's whole definition and of eot_id; saving keeps it.
    """

    def __init__(self, core: Tokenizer, eot_id: int, folder: Path | None = None) -> None:
        core.no_padding()
        core.no_truncation()
        self.core = core
        self.eot_id = eot_id
        # Ids may have gaps, and an embedding row must exist for the highest one.
        self.vocab_size: int = 1 + max(core.get_vocab(with_added_tokens=True).values())
        self.dtype: type[np.uint16] | type[np.uint32] = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        self.fingerprint = hashlib.sha256(f"{core.to_str()}\0{eot_id}".encode()).hexdigest()
        self._folder = folder

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def pad_id(self) -> int | None:
        """The id of [PAD], where there is one: GPT-2's tokenizer has it for masked models."""
        number = self.core.token_to_id("[PAD]")
        return None if number is None else int(number)

    def encode(self, text: str) -> TokenArray:
        """The ids of `text`, a 1-D array of `dtype`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """The ids of each text, 1-D arrays of `dtype`.

        Runs in parallel in Rust: RAYON_NUM_THREADS limits the threads, TOKENIZERS_PARALLELISM=false turns them off.
        """
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of `ids`, special tokens included."""
        text: str = self.core.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def save_pretrained(self, folder: Path) -> None:
        """Writes a Hugging Face tokenizer folder: AutoTokenizer.from_pretrained(folder) gives the same ids, offline."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._folder is None:
            (_save_masked if self.core.token_to_id("[MASK]") is not None else _save_gpt2)(self.core, folder)
        elif folder.resolve() != self._folder.resolve():
            for name in _FOLDER_FILES:
                if (source := self._folder / name).is_file():
                    shutil.copyfile(source, folder / name)


def load_tokenizer(
    model_dir: Path | None = None, vocab_size: int = gpt2.VOCAB_SIZE, masked: bool = False
) -> TextTokenizer:
    """The tokenizer of a local Hugging Face folder (its tokenizer.json), or GPT-2's when `model_dir` is None.

    `vocab_size`: how many of GPT-2's ids to keep; a smaller vocabulary has only the first merges.
    `masked`: GPT-2's gets a masked model's own tokens after them. Raises DataError if the folder has no readable
    tokenizer.json or no token that ends a document.
    """
    if model_dir is None:
        core = gpt2.gpt2_tokenizer(vocab_size)
        return TextTokenizer(gpt2.with_special_tokens(core) if masked else core, eot_id=vocab_size - 1)
    path = model_dir / "tokenizer.json"
    try:
        core = Tokenizer.from_buffer(path.read_bytes())
    except OSError:
        raise DataError(f"{model_dir} has no readable tokenizer.json; give a Hugging Face model folder") from None
    except Exception as error:  # the Rust side raises bare Exception, of all that a stranger's file can be
        raise DataError(f"{path} is not a tokenizer of the tokenizers library: {error}") from None
    return TextTokenizer(core, _end_of_text(core, model_dir), model_dir)


def _end_of_text(core: Tokenizer, folder: Path) -> int:
    """The id of <|endoftext|> if there is one, else of eos_token, which in chat models is the end of a turn.

    A BERT has neither: its [SEP] ends a document.
    """
    for token in (gpt2.END_OF_TEXT, _eos_token(folder / "tokenizer_config.json"), "[SEP]"):
        if token is not None and (token_id := core.token_to_id(token)) is not None:
            return int(token_id)
    raise DataError(f"{folder}: no {gpt2.END_OF_TEXT} in tokenizer.json and no eos_token in tokenizer_config.json")


def _eos_token(config: Path) -> str | None:
    if not config.is_file():
        return None
    try:  # not the strict reader: transformers itself writes 10^30 for a length without limit
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise DataError(f"{config} is no JSON object of a tokenizer's settings") from None
    token = named.get("content") if isinstance(named, dict) else named
    return token if isinstance(token, str) else None


def _save_masked(core: Tokenizer, folder: Path) -> None:
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "mask")}
    special = {**named, "unk_token": gpt2.END_OF_TEXT}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **special}
    write_bytes(folder / "tokenizer.json", core.to_str(pretty=True).encode())
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", special)


def _save_gpt2(core: Tokenizer, folder: Path) -> None:
    vocab_size = core.get_vocab_size()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), gpt2.END_OF_TEXT)
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "model_max_length": 1024, **special}
    write_bytes(folder / "tokenizer.json", core.to_str(pretty=True).encode())
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", special)
    # The two files of older readers, which know no tokenizer.json.
    write_json(folder / "vocab.json", gpt2.vocabulary(gpt2.merges(vocab_size)))
    write_bytes(folder / "merges.txt", gpt2.merges_text(vocab_size).encode())
