"""Laws of the mix: nothing lost at borders, shares of tokens, each document once a pass, exact resumption."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fsdp_lab.data.batches.mix import MixSource, open_sources, validation_sequences
from fsdp_lab.data.batches.row_digest import RowDigest, digest_of_all
from fsdp_lab.data.batches.streaming.batches import MixedBatches
from fsdp_lab.data.batches.streaming.packing import Packer, TokenRange
from fsdp_lab.data.batches.streaming.row_order import RowOrder
from fsdp_lab.data.batches.streaming.shuffle import Draws, ShuffleBuffer
from fsdp_lab.data.batches.streaming.shuffled_documents import ShuffledDocuments
from fsdp_lab.data.corpus import MixedCorpus
from fsdp_lab.data.tokens.shards import Meta, Position, Settings, Shard, TokenizedCorpus
from fsdp_lab.data.tokens.token_stream import TokenStream
from fsdp_lab.data.tokens.tokenizer import TextTokenizer
from fsdp_lab.files.atomic import file_sha256
from fsdp_lab.files.errors import DataError
from fsdp_lab.settings.shares import shares
from tests.fsdp_lab.data.conftest import WriteArray, rows

EOT = 0
LONGEST = 90


def corpus(folder: Path, lengths: list[int], start: int, shard_tokens: int = 50) -> TokenizedCorpus:
    """Documents of ``lengths`` tokens each, counting up from ``start`` and ended by EOT; shards of 50 tokens."""
    ids = np.arange(start, start + sum(lengths))
    ids[np.cumsum(lengths) - 1] = EOT
    meta = Meta(Settings(f"text {start}", "", EOT, "uint16", 0.0, shard_tokens), documents=len(lengths), finalized=True)
    for number, first in enumerate(range(0, len(ids), shard_tokens)):
        part = ids[first : first + shard_tokens].astype("<u2")
        part.tofile(path := folder / f"{number:05d}.bin")
        meta.shards["train"].append(Shard(path.name, len(part), file_sha256(path), Position(1)))
    meta.write(folder)
    return TokenizedCorpus.open(folder)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[TokenizedCorpus]:
    """Three corpora: short documents, long ones, and a small one that runs out soon."""
    draw = np.random.default_rng(1)
    lengths = [draw.integers(1, 20, 300), draw.integers(1, LONGEST + 1, 60), draw.integers(3, 9, 12)]
    folders = [tmp_path_factory.mktemp(f"source{i}") for i in range(3)]
    return [corpus(f, ls.tolist(), 1 + 10_000 * i) for i, (f, ls) in enumerate(zip(folders, lengths, strict=True))]


@pytest.fixture(scope="module")
def streams(sources: list[TokenizedCorpus]) -> list[TokenStream]:
    return [TokenStream(source, "train") for source in sources]


WEIGHTS = [0.5, 0.3, 0.2]


def mixed(streams: list[TokenStream], **changes: Any) -> MixedBatches:
    given: dict[str, Any] = {"max_length": 16, "batch_size": 3, "rank": 0, "world_size": 1, "seed": 7}
    given |= {"shuffle_documents": 25, "shuffle_rows": 6, "prefetch": 3}
    return MixedBatches(streams, WEIGHTS, **(given | changes))


def tokens_of(stream: TokenStream, start: int, stop: int) -> list[int]:
    out = np.empty(stop - start, np.int64)
    stream.read_into(out, start)
    return list(out.tolist())


def first(batches: MixedBatches, count: int) -> Tensor:
    return torch.cat([tokens for tokens, _ in islice(batches.stream(), count)])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), taken=st.integers(0, 5000))
def test_a_count_brings_the_draws_back(seed: int, taken: int) -> None:
    draws = Draws(seed, 3)
    values = [draws.below(1000) for _ in range(taken + 5)]
    later = Draws(seed, 3, taken)
    assert [later.below(1000) for _ in range(5)] == values[-5:]
    oracle = np.random.Philox(key=np.array([seed, 3], dtype=np.uint64)).random_raw(taken + 5)
    assert values == (oracle % np.uint64(1000)).tolist()


def test_a_buffer_as_long_as_its_stream_shuffles_completely() -> None:
    orders: Counter[tuple[int, ...]] = Counter()
    for seed in range(2400):
        buffer = ShuffleBuffer(Draws(seed, 0), [1, 2, 3, 4])
        orders[tuple(buffer.take() for _ in range(4))] += 1
    assert len(orders) == 24
    assert sum((count - 100) ** 2 / 100 for count in orders.values()) < 49.7  # chi-squared, 23 degrees, 0.1 %


@pytest.mark.parametrize("shuffle", [1, 10, 1000])
def test_every_document_comes_once_a_pass(streams: list[TokenStream], shuffle: int) -> None:
    whole = tokens_of(streams[0], 0, streams[0].num_tokens)
    ends = [i + 1 for i, token in enumerate(whole) if token == EOT]
    documents = list(zip([0, *ends[:-1]], ends, strict=True))
    source = ShuffledDocuments(streams[0], shuffle, seed=5, number=1)
    passes = [[tuple(source.next()) for _ in documents] for _ in range(3)]
    assert all(sorted(one) == documents for one in passes)
    assert source.passes == 2
    assert (passes[0] == documents) == (shuffle == 1)
    assert (passes[0] == passes[1]) == (shuffle == 1)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    length=st.integers(1, 12),
    n_views=st.integers(1, 4),
)
def test_packed_rows_are_the_documents_end_to_end(lengths: list[int], length: int, n_views: int) -> None:
    packer, packed, position = Packer(length, n_views), [], 0
    for number in lengths:
        packer.add(TokenRange(0, position, position + number))
        position += number
        while packer.has_row:
            packed.append([i for _, start, stop in packer.row() for i in range(start, stop)])
    for number, row in enumerate(packed):
        assert row == list(range(number * length, (number + 1) * length + n_views - 1))
    left = [i for _, start, stop in packer.waiting for i in range(start, stop)]
    assert left == list(range(len(packed) * length, position))
    assert len(left) < length + n_views - 1


def test_rows_in_a_row_are_whole_documents_in_the_order_dealt(streams: list[TokenStream]) -> None:
    """With no shuffling of rows: what is cut at a row's end goes on in the next row, also after a stop."""
    order = RowOrder(streams, WEIGHTS, 16, 1, 7, 25, shuffle_rows=1)
    text: list[int] = []
    for number in range(400):
        text += [i for s, a, b in order.next_row() for i in tokens_of(streams[s], a, b)]
        if number % 50 == 49:
            state = json.loads(json.dumps(order.state()))
            order = RowOrder(streams, WEIGHTS, 16, 1, 7, 25, shuffle_rows=1)
            order.load(state)
    known = {tuple(d) for stream in streams for d in documents_of(stream)}
    found = list(split(text))
    assert len(found) > 400
    assert all(document in known for document in found)


def documents_of(stream: TokenStream) -> Iterator[tuple[int, ...]]:
    return split(tokens_of(stream, 0, stream.num_tokens))


def split(tokens: list[int]) -> Iterator[tuple[int, ...]]:
    """Whole documents, each with its EOT; what follows the last one is left out."""
    start = 0
    for i, token in enumerate(tokens):
        if token == EOT:
            yield tuple(tokens[start : i + 1])
            start = i + 1


@settings(max_examples=15, deadline=None)
@given(weights=st.lists(st.floats(0.05, 1), min_size=3, max_size=3), num_rows=st.integers(1, 400))
def test_shares_of_tokens_approach_the_weights(streams: list[TokenStream], weights: list[float], num_rows: int) -> None:
    order = RowOrder(streams, weights, 16, 1, 3, 25, shuffle_rows=6)
    rows = [order.next_row() for _ in range(num_rows)]
    total = 16 * num_rows
    assert sum(order.tokens_drawn) == total
    for i, weight in enumerate(weights):
        drawn = sum(stop - start for row in rows for source, start, stop in row if source == i)
        assert drawn == order.tokens_drawn[i]
        # what waits for its turn: a document of each source, the leftover and five rows
        assert abs(drawn - weight / sum(weights) * total) <= 3 * LONGEST + 16 * 7


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_resumed_batches_equal_uninterrupted_ones(streams: list[TokenStream], data: st.DataObject) -> None:
    shuffles = {"shuffle_documents": data.draw(st.integers(1, 400)), "shuffle_rows": data.draw(st.integers(1, 40))}
    batches = mixed(streams, n_views=data.draw(st.integers(1, 3)), **shuffles)
    expected = first(batches, 30)
    found, stream, state = [], batches.stream(), None
    stops = data.draw(st.sets(st.integers(1, 29), max_size=4))
    for number in range(30):
        if number in stops:
            stream = batches.stream(json.loads(json.dumps(state)))
        tokens, state = next(stream)
        found.append(tokens)
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize(
    ("world_size", "batch_size", "played"), [(1, 6, 1), (2, 3, 1), (3, 2, 1), (6, 1, 1), (3, 2, 3)]
)
def test_ranks_share_one_order_of_rows_also_after_their_number_changed(
    streams: list[TokenStream], world_size: int, batch_size: int, played: int
) -> None:
    expected = first(mixed(streams, batch_size=6), 8)
    _, state = next(islice(mixed(streams, batch_size=6).stream(), 3, None))
    parts = []
    for rank in range(0, world_size, played):
        one = mixed(streams, batch_size=batch_size, world_size=world_size, rank=rank, played=played)
        parts.append([tokens for tokens, _ in islice(one.stream(state), 4)])
    found = torch.cat([tokens for of_ranks in zip(*parts, strict=True) for tokens in of_ranks])
    assert torch.equal(found, expected[24:])


def test_views_are_the_following_tokens_and_the_last_target_is_not_lost(streams: list[TokenStream]) -> None:
    one, three = first(mixed(streams, shuffle_rows=1), 20), first(mixed(streams, shuffle_rows=1, n_views=3), 20)
    assert three.shape == (60, 16, 3)
    text = torch.cat([one.flatten()])
    for view in range(3):
        assert torch.equal(three[:-1, :, view].flatten(), text[view : view + 59 * 16])


def test_what_fails_in_the_background_is_raised_in_front(streams: list[TokenStream]) -> None:
    batches = mixed(streams)
    stream = batches.stream()
    next(stream)
    batches.streams = []
    with pytest.raises(IndexError):
        list(islice(stream, 6))


def open_mix(sources: list[TokenizedCorpus], streams: list[TokenStream], **changes: Any) -> MixedCorpus:
    named = [MixSource(name, w, s) for name, w, s in zip("abc", WEIGHTS, sources, strict=True)]
    batches, said = mixed(streams, **changes), changes.get("said", [])
    nothing: Any = None
    return MixedCorpus("mix", nothing, 0, batches, nothing, named, 3 * batches.world_size, said.append)


def test_a_corpus_goes_on_after_the_last_batch_taken(
    sources: list[TokenizedCorpus], streams: list[TokenStream]
) -> None:
    whole, before, after = (open_mix(sources, streams) for _ in range(3))
    expected = [whole.next_batch().rows for _ in range(12)]
    assert expected[0].shape == (3, 16)
    fresh = json.loads(json.dumps(before.state_dict()))
    found = [before.next_batch().rows for _ in range(5)]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    found += [after.next_batch().rows for _ in range(7)]
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert after.state_dict() == whole.state_dict()
    after.load_state_dict(fresh)
    assert torch.equal(after.next_batch().rows, expected[0])


def test_another_stream_is_refused_by_name(sources: list[TokenizedCorpus], streams: list[TokenStream]) -> None:
    state = open_mix(sources, streams).state_dict()
    for name, value in {"seed": 8, "max_length": 8, "shuffle_rows": 5, "shuffle_documents": 4}.items():
        with pytest.raises(ValueError, match=rf"{name} was .*, is {value}"):
            open_mix(sources, streams, **{name: value}).load_state_dict(state)
    with pytest.raises(ValueError, match=r"sequences a step .* was 3, is 6"):
        open_mix(sources, streams, world_size=2).load_state_dict(state)
    with pytest.raises(ValueError, match="sources was"):
        open_mix(sources[::-1], streams[::-1]).load_state_dict(state)
    with pytest.raises(ValueError, match="damaged"):
        open_mix(sources, streams).load_state_dict({"made_of": state["made_of"], "digest": {}})
    broken = state["stream"] | {"dealt": None}
    with pytest.raises(ValueError, match="damaged"):
        open_mix(sources, streams).load_state_dict(state | {"stream": broken})


def test_a_source_that_runs_out_is_counted_and_said(sources: list[TokenizedCorpus], streams: list[TokenStream]) -> None:
    said: list[str] = []
    data = open_mix(sources, streams)
    data.say = said.append
    for _ in range(60):
        data.next_batch()
    passes = data.state_dict()["stream"]["sources"][2]["passes"]
    assert passes >= 4
    assert next(line for line in said if " c " in line).endswith("all of c was dealt 1 times; it begins again")
    assert sum(" c " in line for line in said) == passes.bit_length()


@settings(max_examples=30, deadline=None)
@given(
    split=st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]), played=st.sampled_from([1, 3]), seed=st.integers(0, 9)
)
def test_the_digest_is_the_same_for_every_split_and_another_for_another_order(
    split: tuple[int, int], played: int, seed: int
) -> None:
    world, rows_each = split
    played = played if world == 3 else 1
    batches = torch.from_numpy(np.random.default_rng(seed).integers(0, 99, (5, 12, 8)))

    def digest(of: Tensor) -> str | None:
        parts = []
        for rank in range(0, world, played):
            own = slice(rank * rows_each, (rank + played) * rows_each)
            one = RowDigest(own.start, own.stop - own.start, 12)
            for number, batch in enumerate(of):
                if number == 3:  # a stop
                    state = json.loads(json.dumps(one.state_dict()))
                    one = RowDigest(own.start, own.stop - own.start, 12)
                    one.load_state_dict(state)
                one.add(batch[own])
            parts.append(one.part(len(of)))
        return digest_of_all(parts)

    alone = RowDigest(0, 12, 12)
    for batch in batches:
        alone.add(batch)
    assert digest(batches) == digest_of_all([alone.part(5)])
    assert len(digest(batches) or "") == 32
    assert digest(batches.flip(0)) != digest(batches) != digest(batches.flip(1))
    assert digest_of_all([alone.part(4)]) is None
    other = RowDigest(0, 6, 12)
    other.load_state_dict(alone.state_dict())
    assert other.part(5) is None


@pytest.mark.parametrize(
    "mix",
    [{"a": 1e308, "b": 1e308}, {"a": 10**400, "b": 1}, {"a": 1.0, "b": 5e-324}, {"a": float("inf")}, {"a": True}],
)
def test_weights_that_no_float_can_share_are_refused(mix: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"data_mix: the weight of '[ab]'"):
        shares(mix)


def test_shares_do_not_depend_on_how_the_mix_is_written() -> None:
    assert shares({"b": 40, "a": 10}) == shares({"a": 0.1, "b": 0.4}) == {"a": 0.2, "b": 0.8}
    assert list(shares({"b": 1, "a": 1})) == ["a", "b"]
    for bad in (0, -1, True, "1", float("nan")):
        with pytest.raises(DataError, match="weight of 'a'"):
            shares({"a": bad})


def test_sources_are_files_folders_or_the_embedded_corpus(
    tokenizer: TextTokenizer, write_array: WriteArray, tmp_path: Path
) -> None:
    from fsdp_lab.data.tokens.tokenization import tokenize

    def tokenise(_: int, path: Path) -> TokenizedCorpus:
        return tokenize(path, tokenizer, tmp_path / "cache", val_fraction=0.2, progress=False)

    one, two = write_array(rows(40), "one.json"), write_array(rows(70, words=20), "two.json")
    folder = tokenise(0, two).folder
    found = open_sources({str(two): 1, str(one): 3}, tokenizer, 0.2, tokenise)
    assert [(s.name, s.share) for s in found] == [(str(one), 0.75), (str(two), 0.25)]
    assert open_sources({str(folder): 1}, tokenizer, 0.2, tokenise)[0].tokens == found[1].tokens
    joined = validation_sequences(found, 16)
    sizes = [s.tokens.num_tokens("val") // 16 for s in found]
    assert len(joined) == sum(sizes)
    expected = np.concatenate(found[1].tokens.shards("val"))[:16].tolist()
    assert joined.rows(np.array([sizes[0]]))[0].tolist() == expected
    with pytest.raises(DataError, match="same text"):
        open_sources({str(folder): 1, str(two): 1}, tokenizer, 0.2, tokenise)
    with pytest.raises(DataError, match=r"--val_fraction 0\.2"):
        open_sources({str(folder): 1}, tokenizer, 0.1, tokenise)
    with pytest.raises(DataError, match=r"json: the val split"):
        validation_sequences(found, found[1].tokens.num_tokens("val") + 1)
