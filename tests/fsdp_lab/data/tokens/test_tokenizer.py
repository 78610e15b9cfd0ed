import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from fsdp_lab.data.tokens import gpt2
from fsdp_lab.data.tokens.tokenizer import TextTokenizer, load_tokenizer
from fsdp_lab.files.errors import DataError

TEXTS = ["Hello world", "", "  two  spaces\n\n\tand tabs ", "naïve 漢字 🎉", "a<|endoftext|>b", "don't 1234567 !!!"]


def test_known_encoding(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("Hello world")
    assert ids.tolist() == [15496, 995]
    assert ids.dtype == np.uint16
    assert (tokenizer.vocab_size, len(tokenizer), tokenizer.eot_id) == (50257, 50257, 50256)


def test_vocabulary_is_openai_s_encoder_json(tokenizer: TextTokenizer) -> None:
    assert hashlib.sha256(gpt2.merges_text().encode()).hexdigest() == (
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    )
    # OpenAI's encoder.json is this dictionary as json.dumps writes it; its hash is the one other libraries pin.
    encoder = json.dumps(gpt2.vocabulary(gpt2.merges()))
    assert hashlib.sha256(encoder.encode()).hexdigest() == (
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    )


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])), vocab_size=st.sampled_from([257, 4096, 50257]))
def test_decoding_gives_back_the_text(text: str, vocab_size: int) -> None:
    tokenizer = _gpt2(vocab_size)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("vocab_size", [257, 1000, 4096])
def test_a_smaller_vocabulary_is_gpt2_s_first_merges(vocab_size: int) -> None:
    whole, small = _gpt2(), _gpt2(vocab_size)
    assert (small.vocab_size, small.eot_id) == (vocab_size, vocab_size - 1)
    for token, number in small.core.get_vocab(with_added_tokens=False).items():
        if number != small.eot_id:
            assert whole.core.token_to_id(token) == number
    for text in TEXTS:  # encoding stops merging earlier; what it then says is what the whole tokenizer begins with
        assert len(small.encode(text)) >= len(whole.encode(text))
    assert _gpt2(257).encode("Hello").tolist() == [whole.core.token_to_id(letter) for letter in "Hello"]


def test_batch_equals_one_by_one(tokenizer: TextTokenizer) -> None:
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert ids.tolist() == tokenizer.encode(text).tolist() == tokenizer.core.encode(text).ids


def test_fingerprint_depends_on_the_definition(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    assert load_tokenizer().fingerprint == tokenizer.fingerprint
    assert _small(tmp_path).fingerprint != tokenizer.fingerprint


def test_a_saved_tokenizer_finds_the_same_token_cache(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_transformers_load_the_saved_folder_offline(tmp_path: Path) -> None:
    """Of some of GPT-2's ids and of all; one process for both, as most of its time are imports."""
    sizes, expected = (4096, 50257), []
    for vocab_size in sizes:
        tokenizer = _gpt2(vocab_size)
        tokenizer.save_pretrained(tmp_path / str(vocab_size))
        expected += 2 * [[ids.tolist() for ids in tokenizer.encode_batch(TEXTS)]]
    program = (
        "import json, sys, transformers\n"
        "for size in sys.argv[3:]:\n"
        "    for name in ('AutoTokenizer', 'GPT2TokenizerFast'):\n"
        "        loaded = getattr(transformers, name).from_pretrained(f'{sys.argv[1]}/{size}')\n"
        "        assert len(loaded) == loaded.eos_token_id + 1 == int(size), (name, len(loaded))\n"
        "        print(json.dumps(loaded(json.loads(sys.argv[2]))['input_ids']))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), json.dumps(TEXTS), *map(str, sizes)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()[-4:]] == expected


def test_saved_folder_loads_here_with_equal_ids(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "a")
    first = load_tokenizer(tmp_path / "a")
    first.save_pretrained(tmp_path / "b")
    first.save_pretrained(tmp_path / "a")  # onto itself: nothing to do
    second = load_tokenizer(tmp_path / "b")
    for loaded in (first, second):
        assert (loaded.vocab_size, loaded.eot_id) == (50257, 50256)
        assert [ids.tolist() for ids in loaded.encode_batch(TEXTS)] == [
            ids.tolist() for ids in tokenizer.encode_batch(TEXTS)
        ]
    assert first.fingerprint == second.fingerprint


def test_added_tokens_enlarge_the_vocabulary_and_eos_token_ends_documents(tmp_path: Path) -> None:
    small = _small(tmp_path)
    assert small.vocab_size == 4
    assert small.eot_id == 3


def test_large_vocabularies_need_uint32() -> None:
    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(65_537)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    wide = TextTokenizer(core, 0)
    assert wide.encode("w65536").dtype == np.uint32
    assert wide.encode("w65536").tolist() == [65_536]


def test_truncation_and_padding_of_the_folder_are_switched_off(tmp_path: Path) -> None:
    core = gpt2.gpt2_tokenizer()
    core.enable_truncation(2)
    core.enable_padding(length=8)
    core.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(tmp_path).encode("one two three four")) == 4


def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no readable tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="no eos_token"):
        load_tokenizer(tmp_path)


def _small(folder: Path) -> TextTokenizer:
    core = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    core.add_special_tokens(["</s>"])
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return load_tokenizer(folder)


@functools.cache
def _gpt2(vocab_size: int = 50257) -> TextTokenizer:
    return load_tokenizer(vocab_size=vocab_size)
