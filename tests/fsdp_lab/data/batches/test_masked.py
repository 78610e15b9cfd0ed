"""Sequences of a masked model: the paper's shares, and that only seed, epoch and index decide what is masked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from fsdp_lab.data import load_tokenizer
from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.loader import Batches, TokenDataset, validation_batches
from fsdp_lab.data.batches.masked.dataset import MaskedDataset, Masking
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.data.tokens.shards import TokenizedCorpus
from fsdp_lab.data.tokens.tokenization import tokenize
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.errors import DataError
from tests.fsdp_lab.data.conftest import WriteArray

LENGTH = 32


@pytest.fixture(scope="module")
def masked_tokenizer() -> TextTokenizer:
    return load_tokenizer(vocab_size=400, masked=True)


@pytest.fixture
def corpus(tmp_path: Path, write_array: WriteArray, masked_tokenizer: TextTokenizer) -> TokenizedCorpus:
    texts = [". ".join(f"{d * i * 7919 % 9973} is {d * 104729 % 9967}" for i in range(1, 5 + d % 5)) for d in range(60)]
    path = write_array([{"id": str(i), "title": f"T{i}", "text": text} for i, text in enumerate(texts)])
    return tokenize(path, masked_tokenizer, tmp_path / "cache", val_fraction=0.2, progress=False)


@pytest.fixture
def masking(masked_tokenizer: TextTokenizer) -> Masking:
    return Masking.of(masked_tokenizer)


def test_rows_have_the_papers_form_and_shares(corpus: TokenizedCorpus, masking: Masking) -> None:
    dataset, text = MaskedDataset(corpus, "train", LENGTH, masking, seed=3), TokenDataset(corpus, "train", LENGTH - 3)
    assert len(dataset) == len(text)
    everything = np.arange(len(dataset))
    rows = torch.cat([dataset.rows(everything, epoch) for epoch in range(40)])
    tokens, types, labels = rows.unbind(-1)
    asked = labels[:, 1:] != IGNORED
    assert set(asked.sum(1).tolist()) == {num_chosen(LENGTH)} == {5}
    assert (tokens[:, 0] == masking.ids.cls).all()
    assert (tokens[:, -1] == masking.ids.sep).all()
    assert (types.diff(dim=1) >= 0).all()
    middle = (types == 0).sum(1) - 1
    assert (tokens.gather(1, middle[:, None]) == masking.ids.sep).all(), "[SEP] is never masked, and of the first type"
    seen, wanted = tokens[:, 1:][asked], labels[:, 1:][asked]
    shares = [(seen == masking.ids.mask).float().mean(), (seen == wanted).float().mean()]
    assert shares == [pytest.approx(0.8, abs=0.02), pytest.approx(0.1, abs=0.02)]
    assert labels[:, 0].float().mean() == pytest.approx(0.5, abs=0.04)


def test_the_second_segment_is_the_continuation_or_of_another_document(
    corpus: TokenizedCorpus, masking: Masking
) -> None:
    dataset, text = MaskedDataset(corpus, "train", LENGTH, masking, seed=3), TokenDataset(corpus, "train", LENGTH - 3)
    everything = np.arange(len(dataset))
    whole = text.rows(everything)
    tokens, types, labels = dataset.rows(everything).unbind(-1)
    unmasked = torch.where((labels != IGNORED) & (torch.arange(LENGTH) > 0), labels, tokens)
    stream = torch.from_numpy(np.concatenate(corpus.shards("train")).astype(np.int64))
    for row, one, of_type, label in zip(unmasked, whole, types, labels[:, 0], strict=True):
        first = int((of_type == 0).sum()) - 2
        assert row[1 : 1 + first].tolist() == one[:first].tolist()
        second = row[2 + first : -1]
        if label == 0 or len(second) > 8:  # a few tokens may be the same elsewhere
            assert torch.equal(second, one[first:]) == (label == 0)
        assert second[0] != masking.eot_id
        assert any(torch.equal(part, second) for part in stream.unfold(0, len(second), 1)), "text as it stands"


def test_ranks_batch_sizes_and_order_have_no_part_in_what_is_masked(corpus: TokenizedCorpus, masking: Masking) -> None:
    dataset = MaskedDataset(corpus, "train", LENGTH, masking, seed=7)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    whole = Batches(dataset, 4, 0, 1, seed=7).batch(1, 0)
    parts = [Batches(dataset, 2, rank, 2, seed=7).batch(1, 0) for rank in (0, 1)]
    assert torch.equal(torch.cat([part.rows for part in parts]), whole.rows)
    assert torch.equal(Batches(dataset, 2, 0, 2, seed=7, played=2).batch(1, 0).rows, whole.rows)
    assert [part.targets for part in parts] == [whole.targets / 2] * 2 == [2 * num_chosen(LENGTH)] * 2
    assert before[0] == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert torch.equal(before[1], torch.get_rng_state())
    some = np.array([3, 1])
    assert torch.equal(dataset.rows(some, 2), dataset.rows(some[::-1].copy(), 2).flip(0))
    assert not torch.equal(dataset.rows(some, 2), dataset.rows(some, 3)), "each epoch masks anew"
    other = MaskedDataset(corpus, "train", LENGTH, masking, seed=8)
    assert not torch.equal(dataset.rows(some, 2), other.rows(some, 2))


def test_validation_pads_rows_and_is_the_same_for_any_ranks(corpus: TokenizedCorpus, masking: Masking) -> None:
    dataset = MaskedDataset(corpus, "val", LENGTH, masking)
    alone = torch.cat([rows[weight > 0] for rows, weight in validation_batches(dataset, 3, 0, 1)])
    dealt = [batch for rank in (0, 1) for batch in validation_batches(dataset, 3, rank, 2)]
    assert {rows.shape for rows, _ in dealt} == {(3, LENGTH, 3)}
    together = torch.cat([rows[weight > 0] for rows, weight in dealt])
    assert sorted(map(str, together.tolist())) == sorted(map(str, alone.tolist()))


def test_too_short_sequences_and_tokenizers_without_masks_are_refused(
    corpus: TokenizedCorpus, masking: Masking, tokenizer: TextTokenizer
) -> None:
    with pytest.raises(DataError, match=r"max_length must be at least 8"):
        MaskedDataset(corpus, "train", 7, masking)
    with pytest.raises(DataError, match=r"no \[PAD\]"):
        Masking.of(tokenizer)


def test_a_saved_tokenizer_is_the_same_and_transformers_reads_it(
    tmp_path: Path, masked_tokenizer: TextTokenizer
) -> None:
    masked_tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.fingerprint, again.eot_id) == (masked_tokenizer.fingerprint, masked_tokenizer.eot_id)
    assert (masked_tokenizer.vocab_size, masked_tokenizer.pad_id) == (404, 400)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    pair = theirs("a river", "a sea")
    ids = Masking.of(again).ids
    first, second = again.encode("a river").tolist(), again.encode("a sea").tolist()
    assert pair["input_ids"] == [ids.cls, *first, ids.sep, *second, ids.sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.mask_token_id == ids.mask
