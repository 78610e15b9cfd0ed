from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fsdp_lab.data.batches.loader import (
    Batches,
    Cursor,
    TokenDataset,
    epoch_order,
    num_validation_batches,
    steps_per_epoch,
    validation_batches,
)
from fsdp_lab.data.tokens.shards import Meta, Position, Settings, Shard, TokenizedCorpus
from fsdp_lab.files.atomic import file_sha256
from fsdp_lab.files.errors import DataError

splits = st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)])  # (world size, batch size)


def corpus(folder: Path, num_train: int, num_val: int = 0, shard_tokens: int = 64) -> TokenizedCorpus:
    """A cache whose token i of each split is i (modulo 2^16)."""
    meta = Meta(Settings("", "", 0, "uint16", 0.0, shard_tokens), documents=1, finalized=True)
    for split, count in (("train", num_train), ("val", num_val)):
        for number, start in enumerate(range(0, count, shard_tokens)):
            tokens = np.arange(start, min(start + shard_tokens, count)).astype("<u2")
            name = f"{split}-{number:05d}.bin"
            tokens.tofile(folder / name)
            meta.shards[split].append(Shard(name, len(tokens), file_sha256(folder / name), Position(1)))  # type: ignore[index]
    meta.write(folder)
    return TokenizedCorpus.open(folder)


@pytest.mark.parametrize("shard_tokens", [1, 7, 64, 1000, 5000])
def test_sequences_are_consecutive_tokens_across_shards(tmp_path: Path, shard_tokens: int) -> None:
    dataset = TokenDataset(corpus(tmp_path, 1000, shard_tokens=shard_tokens), "train", 24)
    assert len(dataset) == 1000 // 24
    for i in range(len(dataset)):
        assert dataset[i].dtype == torch.int64
        assert dataset[i].tolist() == list(range(24 * i, 24 * (i + 1)))
    assert torch.equal(dataset.rows(np.array([5, 0])), torch.stack([dataset[5], dataset[0]]))
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_large_token_ids_keep_their_value(tmp_path: Path) -> None:
    dataset = TokenDataset(corpus(tmp_path, 1 << 16, shard_tokens=1 << 16), "train", 1 << 16)
    assert dataset[0][-1] == 65_535


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_epoch_order_is_a_permutation_of_its_own(n: int, seed: int, epoch: int) -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    order = epoch_order(n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert (epoch_order(n, seed, epoch) == order).all()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.random.get_state()[1].tolist() == state[1]  # type: ignore[index]


def test_epoch_order_never_changes_between_versions() -> None:
    assert epoch_order(12, seed=1, epoch=2).tolist() == FROZEN
    assert epoch_order(12, seed=1, epoch=3).tolist() != FROZEN
    assert epoch_order(12, seed=2, epoch=2).tolist() != FROZEN


FROZEN = [4, 11, 2, 0, 6, 1, 5, 10, 9, 8, 7, 3]


@settings(max_examples=30, deadline=None)
@given(first=splits, second=splits, step=st.integers(0, 2), epoch=st.integers(0, 3))
def test_the_global_batch_does_not_depend_on_the_world_size(
    first: tuple[int, int], second: tuple[int, int], step: int, epoch: int
) -> None:
    dataset = shared_dataset()

    def global_batch(world_size: int, batch_size: int) -> torch.Tensor:
        parts = [Batches(dataset, batch_size, r, world_size, seed=3).batch(epoch, step) for r in range(world_size)]
        targets = {part.targets for part in parts}
        assert targets == {batch_size * (dataset.max_length - 1)}
        return torch.cat([part.rows for part in parts])

    assert torch.equal(global_batch(*first), global_batch(*second))


def test_an_epoch_visits_nothing_twice_and_drops_only_the_ragged_end() -> None:
    dataset = shared_dataset()
    seen = [
        int(row[0])
        for rank in range(3)
        for batch in Batches(dataset, 4, rank, 3, seed=0).epoch(0)
        for row in batch.rows
    ]
    assert max(Counter(seen).values()) == 1
    assert len(dataset) - len(seen) == len(dataset) % 12 > 0


@pytest.mark.parametrize("drawn", [0, 1, 2, 3, 7])
def test_a_stream_goes_on_exactly_from_a_saved_cursor(drawn: int) -> None:
    batches = Batches(shared_dataset(), 4, 1, 3, seed=0)
    assert batches.steps_per_epoch == 3
    stream, cursor = batches.stream(), Cursor(epoch=0, step=0)
    for _ in range(drawn):
        _, cursor = next(stream)
    resumed = Batches(shared_dataset(), 4, 1, 3, seed=0).stream(cursor)
    for _ in range(8):
        (a, cursor_a), (b, cursor_b) = next(stream), next(resumed)
        assert torch.equal(a.rows, b.rows)
        assert cursor_a == cursor_b


def test_epochs_and_seeds_differ() -> None:
    batches, other = Batches(shared_dataset(), 4, 0, 1, seed=0), Batches(shared_dataset(), 4, 0, 1, seed=1)
    assert not torch.equal(batches.batch(0, 0).rows, batches.batch(1, 0).rows)
    assert not torch.equal(batches.batch(0, 0).rows, other.batch(0, 0).rows)
    assert torch.equal(next(batches.epoch(0, 2)).rows, batches.batch(0, 2).rows)


@settings(max_examples=60, deadline=None)
@given(world_size=st.integers(1, 7), batch_size=st.integers(1, 9))
def test_validation_covers_every_sequence_once_in_equally_many_batches(world_size: int, batch_size: int) -> None:
    dataset = shared_dataset()
    found: list[int] = []
    for rank in range(world_size):
        batches = list(validation_batches(dataset, batch_size, rank, world_size))
        assert len(batches) == num_validation_batches(dataset, batch_size, world_size)
        for tokens, weight in batches:
            assert tokens.shape == (batch_size, dataset.max_length)
            assert tokens.dtype == torch.int64
            assert weight.shape == (batch_size,)
            assert weight.dtype == torch.float32
            assert not tokens[weight == 0].any()
            found += [int(row[0]) // dataset.max_length for row in tokens[weight == 1]]
    assert sorted(found) == list(range(len(dataset)))


def test_too_little_data_says_what_is_there_and_what_to_change(tmp_path: Path) -> None:
    small = corpus(tmp_path, 100, 0)
    with pytest.raises(DataError, match=r"train split has 100 tokens.*128.*--max_length.*--data_path"):
        TokenDataset(small, "train", 128)
    with pytest.raises(DataError, match=r"val split has 0 tokens"):
        TokenDataset(small, "val", 8)
    with pytest.raises(DataError, match=r"12 sequences \(--max_length 8\).*needs 16 \(--batch_size 8 x 2 ranks\)"):
        Batches(TokenDataset(small, "train", 8), 8, 0, 2, seed=0)
    with pytest.raises(DataError, match="--max_length must be positive"):
        TokenDataset(small, "train", 0)
    with pytest.raises(DataError, match="--batch_size must be positive"):
        Batches(TokenDataset(small, "train", 8), 0, 0, 1, seed=0)
    with pytest.raises(DataError, match="--seed"):
        Batches(TokenDataset(small, "train", 8), 1, 0, 1, seed=-1)


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(100, batch_size=4, world_size=2) == 12
    assert steps_per_epoch(100, batch_size=4, world_size=2, accumulation=3) == 4


def shared_dataset(cache: list[TokenDataset] = []) -> TokenDataset:  # noqa: B006 (one for all examples)
    if not cache:
        import tempfile

        cache.append(TokenDataset(corpus(Path(tempfile.mkdtemp()), 410), "train", 10))
    return cache[0]
