"""Prompt lookup by hand, and against a verification of every draft it makes."""

from __future__ import annotations

import random

import pytest

from fsdp_lab.eagle.decoding.lookup import lookup_passes, propose


@pytest.mark.parametrize(
    ("said", "proposed"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9]),  # three tokens were there before
        ([5, 3, 7, 8, 1, 2, 3], [7, 8]),  # one was
        ([3, 7, 3, 8, 3], [8, 3]),  # the last occurrence counts
        ([2, 3, 7, 3, 8, 2, 3], [7, 3]),  # and a longer one more
        ([1, 2, 3], []),
        ([1], []),
        ([4, 4], [4]),
    ],
)
def test_what_followed_the_longest_repeated_end_is_proposed(said: list[int], proposed: list[int]) -> None:
    assert propose(said, 2) == proposed


def test_passes_by_hand() -> None:
    # 9 is the prompt's pass; nothing follows a 9 yet, so 1 comes alone; then 2 3 4 are copied, and 5 follows
    assert lookup_passes([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5], num_drafts=3) == 2
    assert lookup_passes([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5], num_drafts=0) == 5
    assert lookup_passes([1, 2], [3], num_drafts=4) == 0


def test_between_one_token_a_pass_and_all_drafts() -> None:
    drawn = random.Random(0)
    for _ in range(50):
        prompt, answer = ([drawn.randrange(4) for _ in range(drawn.randrange(1, 30))] for _ in range(2))
        passes = lookup_passes(prompt, answer, 4)
        assert -(-(len(answer) - 1) // 5) <= passes <= len(answer) - 1
