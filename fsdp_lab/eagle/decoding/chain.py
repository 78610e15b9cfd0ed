"""Chain decoding: the draft proposes a few tokens, and one pass of the target decides how many of them are kept.

    speculate(target, draft, prompt, max_new_tokens=64, num_drafts=4)     # the target's own greedy output, faster
    speculate(..., sampling=Sampling(temperature=0.7, top_p=0.9))         # draws from the target's distribution

One sequence at a time, no tree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from fsdp_lab.eagle.draft.attention import ChainCache
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0: always the most likely one. ``top_k`` 0 and ``top_p`` 1: no limit.

    ``drawn_drafts``: draw the draft's tokens from its distribution, and accept with min(1, p / q) (arXiv 2211.17192);
    else propose its first choice, and accept with p. Both keep the target's distribution.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    drawn_drafts: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: wants temperature >= 0, top_k >= 0 and 0 < top_p <= 1, got {self}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that nothing is drawn."""
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distributions to draw from, float64, for logits ``[n, V]``: by transformers' warpers, in its order."""
        assert not self.is_greedy, "nothing is drawn"
        warpers = LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        probabilities: Tensor = warpers(None, logits.double()).softmax(-1)
        return probabilities


class Generated(NamedTuple):
    """An answer: the ``tokens`` after the prompt, and the ``passes`` of the target after the one over the prompt.

    ``accepted[i]``: how many passes kept more than i drafts. ``judged[i]``: how many passes came to judge draft i.
    """

    tokens: list[int]
    passes: int
    accepted: list[int]
    judged: list[int]

    @property
    def tau(self) -> float:
        """Tokens per pass of the target, without the prompt's pass: 1 + the mean number of drafts kept."""
        return (len(self.tokens) - 1) / self.passes if self.passes else 1.0


@torch.no_grad()
def speculate(
    target: Target,
    draft: Draft,
    prompt: list[int],
    max_new_tokens: int,
    num_drafts: int = 4,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
) -> Generated:
    """Continues ``prompt`` until a token of ``stop`` (kept), ``max_new_tokens``, or the end of the target's context.

    ``num_drafts`` 0 decodes without drafts, by the same code. ValueError for a prompt that is empty or too long.
    """
    sampling = sampling or Sampling()
    room = target.max_positions - len(prompt)
    if not prompt or room < 1:
        raise ValueError(
            f"prompt: {len(prompt)} tokens; wants 1 to {target.max_positions - 1}, the target's context less 1"
        )
    limit = min(max_new_tokens, room)
    generator = torch.Generator(target.head.device).manual_seed(sampling.seed)
    verifier, proposer = _Verifier(target), _Proposer(target, draft, sampling, generator)
    features, logits = verifier.see(prompt)
    tokens = [_judge(logits[-1:], Proposed([]), sampling, generator)[1]]
    passes, accepted, judged = 0, [0] * num_drafts, [0] * num_drafts
    fresh = prompt[1:] + tokens  # the token after each position that the draft has yet to read
    while tokens[-1] not in stop and len(tokens) < limit:
        count = min(num_drafts, limit - len(tokens) - 1)
        proposed = proposer.propose(features, fresh, count)
        features, logits = verifier.see([tokens[-1], *proposed.tokens])
        kept, following = _judge(logits, proposed, sampling, generator)
        verifier.forget(count - kept)
        passes += 1
        for i in range(count):
            judged[i] += i <= kept
            accepted[i] += i < kept
        fresh = [*proposed.tokens[:kept], following]
        if (end := _first(fresh, stop)) is not None:
            fresh = fresh[: end + 1]
        tokens += fresh
        features = features[:, : kept + 1]
    return Generated(tokens, passes, accepted, judged)


class Proposed(NamedTuple):
    """Drafted tokens, as target ids, and the distributions from which they were drawn, each float64 ``[V]``.

    There are no distributions where nothing is drawn.
    """

    tokens: list[int]
    drawn_from: Sequence[Tensor] = ()


def _judge(logits: Tensor, proposed: Proposed, sampling: Sampling, generator: torch.Generator) -> tuple[int, int]:
    if not sampling.is_greedy:
        return judge(sampling.probabilities(logits), proposed, generator)
    choices = logits.argmax(-1).tolist()
    kept = next((i for i, token in enumerate(proposed.tokens) if token != choices[i]), len(proposed.tokens))
    return kept, choices[kept]


def judge(p: Tensor, proposed: Proposed, generator: torch.Generator) -> tuple[int, int]:
    """How many drafts are kept, and the token after them. ``p`` ``[n + 1, V]``: the target's distributions."""
    for i, token in enumerate(proposed.tokens):
        q = proposed.drawn_from[i]
        if _uniform(generator) >= float(acceptance(p[i], q)[token]):
            return i, _draw(residual(p[i], q)[None], generator)
    return len(proposed.tokens), _draw(p[-1:], generator)


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """The probability with which each draft is kept if it was drawn from ``q`` ``[V]``: min(1, p / q)."""
    return torch.where(q > 0, p / q, 0).clamp(max=1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution from which a token is drawn in place of a rejected draft: max(0, p - q), normalised.

    If that is zero everywhere, p and q are equal and only rounding can reject a draft; the distribution is then p.
    """
    left = (p - q).clamp(min=0)
    mass = left.sum()
    return left / mass if mass > 0 else p


class _Verifier:
    """The target and its cache, which holds all accepted tokens except the last one."""

    def __init__(self, target: Target) -> None:
        self.target, self.cache = target, DynamicCache()

    def see(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Runs the target over the next n tokens: features ``[1, n, 3h]`` and logits ``[n, V]``."""
        seen = self.target(torch.tensor([tokens], device=self.target.head.device), self.cache)
        return seen.features, self.target.logits(seen.last[0])

    def forget(self, count: int) -> None:
        """Drops the last ``count`` tokens from the cache."""
        if count:
            self.cache.crop(-count)


class _Proposer:
    """The draft and its cache. Between two calls the cache holds only rows made from the target's features."""

    def __init__(self, target: Target, draft: Draft, sampling: Sampling, generator: torch.Generator) -> None:
        self.target, self.draft, self.cache = target, draft, ChainCache()
        self.sampling, self.generator, self.used = sampling, generator, draft.used

    def propose(self, features: Tensor, following: list[int], count: int) -> Proposed:
        """Drafts ``count`` tokens. ``following``: the token after each position of ``features`` ``[1, n, 3h]``."""
        tokens: list[int] = []
        drawn_from: list[Tensor] = []
        if count:
            hidden = self._rows(following, self.draft.fuse(features))[:, -1:]
        true_rows = len(self.cache)
        for i in range(count):
            if i:
                hidden = self._rows(tokens[-1:], hidden)
            token, q = self._choose(self.draft.logits(hidden[0]))
            tokens.append(token)
            drawn_from += q
        self.cache.crop(true_rows)
        return Proposed(tokens, drawn_from)

    def _rows(self, tokens: list[int], hidden: Tensor) -> Tensor:
        embedded = self.target.embed(torch.tensor([tokens], device=hidden.device)).to(hidden.dtype)
        positions = torch.arange(len(self.cache), len(self.cache) + len(tokens), device=hidden.device)
        out: Tensor = self.draft.midlayer(embedded, hidden, self.draft.rotate(hidden, positions), self.cache.attend)
        return out

    def _choose(self, logits: Tensor) -> tuple[int, list[Tensor]]:
        """The chosen token as a target id, and the distribution from which it was drawn, if one was."""
        if self.sampling.is_greedy:
            return int(self.used[logits.argmax(-1)]), []
        if self.sampling.drawn_drafts:
            q = self.sampling.probabilities(logits)
        else:
            q = F.one_hot(logits.argmax(-1), logits.shape[-1]).double()
        whole = torch.zeros(self.target.vocab_size, dtype=torch.float64, device=logits.device)
        whole[self.used] = q[0]
        return int(self.used[_draw(q, self.generator)]), [whole]


def _draw(probabilities: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(probabilities, 1, generator=generator))


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), dtype=torch.float64, generator=generator, device=generator.device))


def _first(tokens: list[int], stop: Collection[int]) -> int | None:
    return next((i for i, token in enumerate(tokens) if token in stop), None)
