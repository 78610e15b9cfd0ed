"""Conversations as rows: only what the assistant says is a label, and which are held out does not depend on the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.loader import Batches
from fsdp_lab.data.chats.dataset import ConversationDataset, split_examples
from fsdp_lab.data.chats.examples import Example
from fsdp_lab.files.errors import DataError

LENGTH = 9


def some(count: int, seed: int = 0) -> list[Example]:
    """Conversations of 2 to 9 tokens, each with an answer."""
    draws = np.random.default_rng(seed)
    made = []
    for i in range(count):
        tokens = torch.from_numpy(draws.integers(1, 100, draws.integers(2, LENGTH + 1)))
        said = torch.from_numpy(draws.integers(0, 2, len(tokens)) == 1)
        said[1] = True
        made.append(Example(str(i), tokens, said))
    return made


def test_a_row_is_a_conversation_its_labels_are_what_the_assistant_says_and_the_rest_is_padding() -> None:
    talk = Example("a", torch.tensor([5, 6, 7, 8]), torch.tensor([True, False, True, True]))
    [row] = ConversationDataset([talk], "train", 6).rows(np.array([0]))
    assert row[:, 0].tolist() == [5, 6, 7, 8, 0, 0]
    assert row[:, 1].tolist() == [5, IGNORED, 7, 8, IGNORED, IGNORED]
    assert ConversationDataset([talk], "train", 6).num_targets(np.array([0, 0])) == 4, "nothing comes before the first"


@settings(max_examples=30, deadline=None)
@given(count=st.integers(4, 20), world=st.sampled_from([1, 2, 4]), seed=st.integers(0, 5))
def test_all_ranks_divide_by_the_same_number_and_get_the_mean_over_all(count: int, world: int, seed: int) -> None:
    dataset = ConversationDataset(some(count, seed), "train", LENGTH)
    whole = Batches(dataset, 4, 0, 1, seed).batch(0, 0)
    parts = [Batches(dataset, 4 // world, rank, world, seed).batch(0, 0) for rank in range(world)]
    assert torch.equal(torch.cat([part.rows for part in parts]), whole.rows)
    assert whole.targets == int((whole.rows[:, 1:, 1] != IGNORED).sum())
    assert {part.targets for part in parts} == {whole.targets / world}


def test_held_out_conversations_are_others_than_those_to_train_on_and_always_the_same() -> None:
    examples = some(50)
    training, held_out = split_examples(examples, 0.1)
    assert len(held_out) == 5
    assert sorted(int(e.name) for e in [*training, *held_out]) == list(range(50))
    assert {e.name for e in split_examples(examples[::-1], 0.1)[1]} == {e.name for e in held_out}
    assert {int(e.name) for e in held_out} != set(range(45, 50)), "a file may be sorted"
    twice, both = split_examples([*examples, *examples], 0.1)
    assert {e.name for e in both} == {e.name for e in held_out}, "equal ones are together"
    assert not {e.name for e in both} & {e.name for e in twice}
    assert len(split_examples(examples, 0.001)[1]) == 1
    with pytest.raises(DataError, match="1 usable conversations, of which 1 are held out, leave none"):
        split_examples(examples[:1], 0.1)


def test_other_words_another_order_or_another_speaker_are_other_data() -> None:
    examples = some(3)
    name, tokens, said = examples[0]
    changed = [
        [examples[1], examples[0], examples[2]],
        [Example(name, tokens + 1, said), *examples[1:]],
        [Example(name, tokens, ~said), *examples[1:]],
    ]
    found = {ConversationDataset(one, "train", LENGTH).identity for one in [examples, *changed]}
    assert len(found) == 4
