"""Which tokens a masked model has to fill in, and what stands in their places (Devlin et al., arXiv 1810.04805, 3.1).

15 % of a sequence's positions are chosen; of these 80 % show [MASK], 10 % a random token, and 10 % what was there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fsdp_lab.data.batches.labels import IGNORED

SHARE = 0.15
_MASKED, _RANDOM = 0.8, 0.1  # the rest stays

Ints = npt.NDArray[np.int64]
Draws = npt.NDArray[np.uint64]


def num_chosen(max_length: int) -> int:
    """How many positions of a sequence are predicted: the same number in each, so that ranks' means weigh alike."""
    return max(1, round(SHARE * max_length))


def draws_of_masking(max_length: int) -> int:
    """How many random numbers `mask` takes for a sequence of ``max_length`` positions."""
    return max_length + 2 * num_chosen(max_length)


def mask(tokens: Ints, candidates: Ints, draws: Draws, mask_id: int, ordinary: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """What the model sees, and what it has to say: int64 ``[T]`` each, labels `IGNORED` where nothing is asked.

    ``candidates``: positions that may be chosen, at least `num_chosen` of them. ``ordinary``: ids to draw a random
    token from. ``draws``: `draws_of_masking` uniform 64-bit numbers, from which all choices follow.
    """
    count = num_chosen(len(tokens))
    assert len(candidates) >= count, (len(candidates), count)
    places, rest = draws[: len(tokens)], draws[len(tokens) :]
    chosen = candidates[np.argsort(places[: len(candidates)], kind="stable")[:count]]
    fate = rest[:count].astype(np.float64) / 2.0**64
    random_tokens = ordinary[(rest[count : 2 * count] % np.uint64(len(ordinary))).astype(np.int64)]
    labels = np.full(len(tokens), IGNORED, dtype=np.int64)
    labels[chosen] = tokens[chosen]
    seen = tokens.copy()
    seen[chosen] = np.where(fate < _MASKED, mask_id, np.where(fate < _MASKED + _RANDOM, random_tokens, tokens[chosen]))
    return seen, labels
