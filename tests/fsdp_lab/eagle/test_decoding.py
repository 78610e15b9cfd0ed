"""Chain decoding says what the target would have said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from fsdp_lab.eagle.decoding import chain as decoding
from fsdp_lab.eagle.decoding.chain import Proposed, Sampling, acceptance, judge, residual, speculate
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel
from tests.fsdp_lab.eagle.tiny import (
    CONTEXT,
    FAMILIES,
    VOCABULARY,
    prompts,
    some_vocabulary,
    tiny_draft,
    tiny_target,
)

FALSE_ALARM = 1e-3  # of each statistical test, had its seed not been fixed
Propose = Callable[[decoding._Proposer, Tensor, list[int], int], Proposed]


class Oracle:
    """Drafts what is known to come, with every third token wrong on average: all lengths of accepted runs occur.

    The draft runs as ever, but for the tokens that it gives, so that both caches are cropped after every length.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.coming: list[int] = []
        self.said = 0
        self._generator = torch.Generator().manual_seed(seed)
        original: Propose = decoding._Proposer.propose

        def propose(proposer: decoding._Proposer, features: Tensor, following: list[int], count: int) -> Proposed:
            original(proposer, features, following, count)
            self.said += len(following) if self.said else 1
            right = self.coming[self.said : self.said + count]
            wrong = torch.rand(len(right), generator=self._generator) < 1 / 3
            return Proposed([(t + bool(w)) % VOCABULARY for t, w in zip(right, wrong, strict=True)])

        monkeypatch.setattr(decoding._Proposer, "propose", propose)

    def expects(self, tokens: list[int]) -> None:
        self.coming, self.said = tokens, 0


def greedy(target: Target, cases: list[list[int]], count: int) -> list[list[int]]:
    """The target's own greedy output, without any cache: prompts of one length together."""
    said: dict[int, list[int]] = {}
    for length in {len(prompt) for prompt in cases}:
        chosen = [i for i, prompt in enumerate(cases) if len(prompt) == length]
        tokens = torch.tensor([cases[i] for i in chosen])
        for _ in range(count):
            tokens = torch.cat([tokens, target.hf(tokens).logits[:, -1:].argmax(-1)], 1)
        said |= dict(zip(chosen, tokens[:, length:].tolist(), strict=True))
    return [said[i] for i in range(len(cases))]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_the_targets_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 prompts for each family, in float64, with drafts that are right, wrong and in between."""
    target = tiny_target(family)
    draft = tiny_draft(target)
    cases = prompts(40, seed=len(family))
    oracle, kept = Oracle(monkeypatch), torch.zeros(4, dtype=torch.int64)
    for prompt, expected in zip(cases, greedy(target, cases, 8), strict=True):
        oracle.expects(expected)
        found = speculate(target, draft, prompt, 8, num_drafts=4)
        assert found.tokens == expected
        assert found.passes == 7 - sum(found.accepted)
        kept += torch.tensor(found.accepted)
    assert kept.min() > 0  # runs of every length were accepted


def test_a_real_drafts_output_is_the_targets_own_too() -> None:
    target = tiny_target("llama")
    draft = tiny_draft(target)
    cases = prompts(8)
    for prompt, expected in zip(cases, greedy(target, cases, 8), strict=True):
        for num_drafts in (0, 3):
            assert speculate(target, draft, prompt, 8, num_drafts).tokens == expected


def test_drafts_come_from_the_logits_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was accepted and dropped before: the caches are what they would be had nothing been dropped."""
    target = tiny_target("qwen3")
    draft, prompt = tiny_draft(target), prompts(1, seed=3)[0]
    model = EagleTrainingModel(target, draft, steps=3)
    expected = speculate(target, draft, prompt, 14, num_drafts=0).tokens
    tokens, steps, chosen = list(prompt), [], decoding._Proposer._choose

    def choose(proposer: decoding._Proposer, logits: Tensor) -> tuple[int, list[Tensor]]:
        token, q = chosen(proposer, logits)
        steps.append((logits[0], token))
        return token, q

    monkeypatch.setattr(decoding._Proposer, "_choose", choose)
    oracle = Oracle(monkeypatch, seed=1)
    oracle.expects(expected)
    through_oracle = decoding._Proposer.propose

    def propose(proposer: decoding._Proposer, features: Tensor, following: list[int], count: int) -> Proposed:
        steps.clear()
        proposed = through_oracle(proposer, features, following, count)
        sequence = torch.tensor([prompt + expected[: oracle.said] + [token for _, token in steps]])
        row = len(prompt) + oracle.said - 2
        unrolled = model.unrolled(target.embed(sequence), target(sequence).features)
        for (logits, _), hidden in zip(steps, unrolled, strict=False):
            torch.testing.assert_close(logits, draft.logits(hidden)[0, row], rtol=0, atol=1e-12)
        return proposed

    monkeypatch.setattr(decoding._Proposer, "propose", propose)
    assert speculate(target, draft, prompt, 14, num_drafts=3).tokens == expected
    assert tokens == prompt


@pytest.mark.parametrize("stop_at", [0, 1, 4, 8])
def test_it_stops_at_a_stop_token_also_inside_an_accepted_run(stop_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("llama")
    draft = tiny_draft(target)
    oracle = Oracle(monkeypatch)
    for prompt in prompts(5):
        said = speculate(target, draft, prompt, 12, num_drafts=0).tokens
        oracle.expects(said)
        expected = said[: said.index(said[stop_at]) + 1]
        assert speculate(target, draft, prompt, 12, num_drafts=5, stop={said[stop_at]}).tokens == expected


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_it_ends_with_the_targets_context(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(family)
    draft = tiny_draft(target)
    oracle = Oracle(monkeypatch)
    for length in (CONTEXT - 1, CONTEXT - 3, CONTEXT - 9):
        prompt = prompts(1)[0] * length
        said = speculate(target, draft, prompt, 50, num_drafts=0).tokens
        assert len(said) == CONTEXT - length
        oracle.expects(said)
        assert speculate(target, draft, prompt, 50, num_drafts=4).tokens == said
    with pytest.raises(ValueError, match="wants 1 to 63"):
        speculate(target, draft, prompts(1)[0] * CONTEXT, 1)
    with pytest.raises(ValueError, match="prompt: 0 tokens"):
        speculate(target, draft, [], 1)


def some_distribution(seed: int, zeros: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(7, generator=generator, dtype=torch.float64).exp()
    weights[torch.randperm(7, generator=generator)[:zeros]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scheme", ["drawn", "first choice"])
def test_the_law_of_rejection_is_exact(seed: int, scheme: str) -> None:
    """Summed over every draft that can be drawn: accepted as it is, or replaced from the residual."""
    p, q = some_distribution(seed, zeros=seed % 4), some_distribution(seed + 100, zeros=seed % 3)
    if scheme == "first choice":
        q = F.one_hot(q.argmax(), 7).double()
    kept = q * acceptance(p, q)
    out = kept + (1 - kept.sum()) * residual(p, q)
    torch.testing.assert_close(out, p, rtol=0, atol=1e-14)
    torch.testing.assert_close(residual(p, p), p)  # never drawn from, but for rounding


def chi_squared(counts: Tensor, expected: Tensor) -> float:
    """The p-value of counts under expected probabilities; cells that cannot occur must not."""
    assert not counts[expected == 0].any()
    possible = expected > 0
    return float(stats.chisquare(counts[possible].numpy(), counts.sum().item() * expected[possible].numpy()).pvalue)


def test_judge_draws_from_the_target() -> None:
    """The next token after two drafts, 3000 times, and how many are kept."""
    p = torch.stack([some_distribution(seed) for seed in (1, 2, 3)])
    q = [some_distribution(seed, zeros=2) for seed in (4, 5)]
    generator = torch.Generator().manual_seed(0)
    first, second = torch.zeros(7), torch.zeros(7)
    for _ in range(3000):
        drafts = [int(torch.multinomial(x, 1, generator=generator)) for x in q]
        kept, token = judge(p, Proposed(drafts, q), generator)
        said = [*drafts[:kept], token]
        first[said[0]] += 1
        if len(said) > 1:
            second[said[1]] += 1
    assert chi_squared(first, p[0]) > FALSE_ALARM
    assert chi_squared(second, p[1]) > FALSE_ALARM


def joint(target: Target, prompt: list[int], sampling: Sampling) -> Tensor:
    """The exact probability of the next three tokens, each by being odd or even ``[2, 2, 2]``."""
    size = target.vocab_size
    pairs = torch.tensor([[*prompt, a, b] for a, b in product(range(size), repeat=2)])
    logits = target.hf(pairs).logits[:, -3:]
    first = sampling.probabilities(logits[:1, 0])[0]
    second = sampling.probabilities(logits[::size, 1])
    third = sampling.probabilities(logits[:, 2]).unflatten(0, (size, size))
    fold = F.one_hot(torch.arange(size) % 2, 2).double()
    whole = torch.einsum("a,ab,abc->abc", first, second, third)
    return torch.einsum("abc,ax,by,cz->xyz", whole, fold, fold, fold)


@pytest.mark.parametrize("sampling", [Sampling(2.0), Sampling(2.0, drawn_drafts=False), Sampling(3.0, 6, 0.9)])
def test_sampled_output_has_the_targets_distribution(sampling: Sampling) -> None:
    """Three tokens, 300 runs with other seeds, against their exact joint distribution."""
    target = tiny_target("llama", vocab_size=9, num_hidden_layers=3)
    draft, prompt = tiny_draft(target, some_vocabulary(9, 7)), [7, 3, 0]
    counts, kept = torch.zeros(2, 2, 2), 0
    for seed in range(300):
        found = speculate(target, draft, prompt, 3, num_drafts=2, sampling=replace(sampling, seed=seed))
        counts[tuple(token % 2 for token in found.tokens)] += 1
        kept += sum(found.accepted)
    assert kept > 20  # or nothing was tested
    with torch.no_grad():
        assert chi_squared(counts, joint(target, prompt, sampling)) > FALSE_ALARM


def test_a_seed_is_a_run() -> None:
    target = tiny_target("qwen2")
    draft, sampling = tiny_draft(target), Sampling(1.0, top_k=5, seed=4)
    runs = [speculate(target, draft, [1, 2], 9, sampling=sampling).tokens for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != speculate(target, draft, [1, 2], 9, sampling=Sampling(1.0, top_k=5, seed=5)).tokens
    with pytest.raises(ValueError, match="temperature >= 0"):
        Sampling(-1.0)


def test_the_draft_is_left_as_it_was() -> None:
    target = tiny_target("llama")
    draft: Draft = tiny_draft(target)
    before = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    speculate(target, draft, [1, 2, 3], 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in draft.state_dict().items())
