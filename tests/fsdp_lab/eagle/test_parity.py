"""What the draft is trained to say is what it says when it decodes; what it is trained on, by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.eagle.draft.attention import ChainCache, TestTimeAttention, masked
from fsdp_lab.eagle.draft.target import Target, default_layers
from fsdp_lab.eagle.training import soft_loss
from fsdp_lab.eagle.training.soft_loss import RowScores
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel, Outcome, supervised_rows
from tests.fsdp_lab.eagle.tiny import CONTEXT, FAMILIES, VOCABULARY, tiny_draft, tiny_target

STEPS, LENGTH = 4, 11


def some_tokens(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_states_that_transformers_names_and_logits_its_own(family: str) -> None:
    target, tokens = tiny_target(family), some_tokens()
    theirs = target.hf(tokens, output_hidden_states=True)
    seen = target(tokens)
    assert torch.equal(seen.features, torch.cat([theirs.hidden_states[i] for i in (2, 3, 4)], -1))
    torch.testing.assert_close(target.logits(seen.last), theirs.logits, rtol=0, atol=1e-12)


def test_layers_are_those_of_serving_engines() -> None:
    assert default_layers(32) == (2, 16, 29)
    assert default_layers(24) == (2, 12, 21)
    assert default_layers(4) == (2, 2, 2)
    with pytest.raises(ValueError, match="3 or more"):
        default_layers(2)
    with pytest.raises(ValueError, match="wants three of 2 to 6"):
        Target(tiny_target("llama").hf, layers=(1, 3, 5))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_training_logits_are_decoding_logits(family: str, dtype: torch.dtype, slack: float) -> None:
    """From every position, a chain with a cache, one row at a time, is fed the tokens that training is."""
    target = tiny_target(family, dtype)
    draft, tokens = tiny_draft(target), some_tokens(1, LENGTH + STEPS)
    with torch.no_grad():
        features, embedded = target(tokens).features, target.embed(tokens)
        trained = [draft.logits(h)[0] for h in EagleTrainingModel(target, draft, STEPS).unrolled(embedded, features)]
        for t in range(LENGTH):
            cache, hidden = ChainCache(), draft.fuse(features[:, : t + 1])
            rows = embedded[:, 1 : t + 2]
            for k in range(STEPS):
                positions = torch.arange(len(cache), len(cache) + rows.shape[1])
                hidden = draft.midlayer(rows, hidden, draft.rotate(hidden, positions), cache.attend)[:, -1:]
                torch.testing.assert_close(trained[k][t], draft.logits(hidden)[0, 0], rtol=0, atol=slack)
                rows = embedded[:, t + 2 + k : t + 3 + k]


def test_merged_attention_and_its_gradients_are_the_masked_ones() -> None:
    torch.manual_seed(0)
    rows = [torch.randn(2, heads, 9, 4, dtype=torch.float64) for _ in range(3) for heads in (6, 2, 2)]
    upstream = torch.randn(2, 6, 9, 4, dtype=torch.float64)

    def merged(leaves: list[Tensor]) -> Tensor:
        attention = TestTimeAttention()
        return [attention.attend(*leaves[i : i + 3]) for i in (0, 3, 6)][-1]

    def by_definition(leaves: list[Tensor]) -> Tensor:
        keys, values = ([x.repeat_interleave(3, 1) for x in leaves[i::3]] for i in (1, 2))
        return masked(leaves[6], keys[0], values[0], torch.stack(keys[1:], -2), torch.stack(values[1:], -2))

    outcomes = []
    for attend in (merged, by_definition):
        leaves = [x.clone().requires_grad_() for x in rows]
        out = attend(leaves)
        used = leaves[1:3] + leaves[4:]
        outcomes.append([out, *torch.autograd.grad(out, used, upstream)])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_what_is_supervised_by_hand() -> None:
    """Positions 2 to 4 and 7 to 8 are the assistant's. It says 2 itself after 0 and 1; the first draft is for 3."""
    mask = torch.zeros(1, 10, dtype=torch.bool)
    mask[0, [2, 3, 4, 7, 8]] = True
    rows = supervised_rows(mask, 3)
    assert [r.nonzero()[:, 1].tolist() for r in rows] == [[1, 2, 6], [1], []]


def straightforward(model: EagleTrainingModel, tokens: Tensor, mask: Tensor) -> tuple[Tensor, RowScores]:
    """The loss as the papers write it: all logits of both models, shifted, step by step."""
    draft, used = model.draft, model.draft.vocabulary.used
    seen = model.target(tokens)
    said = model.target.logits(seen.last)
    loss, correct, overlap = [], [], []
    for k, hidden in enumerate(model.unrolled(model.target.embed(tokens), seen.features)):
        beyond = 1 + k
        teacher = F.pad(said[:, beyond:], (0, 0, 0, beyond))
        rows = supervised_rows(mask, model.steps)[k]
        z = draft.logits(hidden)
        known = draft.t2d[teacher.argmax(-1)]
        cross = -(teacher[..., used].softmax(-1) * z.log_softmax(-1)).sum(-1)
        loss.append(cross * rows * known)
        correct.append((used[z.argmax(-1)] == teacher.argmax(-1)) & rows)
        overlap.append(torch.minimum(teacher.softmax(-1)[..., used], z.softmax(-1)).sum(-1) * rows)
    per_step = torch.stack([x.sum() for x in loss]) / model.counts(mask).clamp(min=1e-9)
    total = (per_step * model.decay ** torch.arange(model.steps)).sum()
    return total, RowScores(torch.stack(loss).detach(), torch.stack(correct), torch.stack(overlap).detach())


def resemble(model: EagleTrainingModel) -> None:
    """Have the draft repeat the token before half of the time: random ones are never right."""
    with torch.no_grad():
        model.draft.lm_head.weight.copy_(model.target.head[model.draft.used])


def gradients(model: EagleTrainingModel, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.draft.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("family", ["llama", "minicpm4"])
def test_the_chunked_loss_and_its_gradients_are_the_straightforward_ones(
    family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(soft_loss.CHUNK_BYTES, "cpu", 4 * VOCABULARY * chunk)
    target = tiny_target(family)
    model = EagleTrainingModel(target, tiny_draft(target), STEPS)
    resemble(model)
    tokens, mask = some_tokens(3), torch.ones(3, LENGTH, dtype=torch.bool)
    mask[0, :4], mask[1, 5], mask[2, 6:] = False, False, False
    total, scores = straightforward(model, tokens, mask)
    ours: Outcome = model(tokens, mask)
    torch.testing.assert_close(ours.loss, total)
    assert 0 < (scores.loss > 0).sum() < ours.supervised.sum()  # some are outside the draft's vocabulary
    torch.testing.assert_close(ours.scores.loss, scores.loss)
    assert torch.equal(ours.scores.correct, scores.correct)
    theirs = gradients(model, total)
    for name, gradient in gradients(model, ours.loss).items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-6, atol=1e-9, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, mask).scores.overlap, scores.overlap)


def test_padding_and_batches_change_nothing() -> None:
    target = tiny_target("qwen2")
    model = EagleTrainingModel(target, tiny_draft(target), STEPS)
    tokens, mask = some_tokens(2), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[:, :3] = False
    counts = model.counts(mask)
    whole = model(tokens, mask)
    longer, longer_mask = F.pad(tokens, (0, 6), value=5), F.pad(mask, (0, 6))
    torch.testing.assert_close(model(longer, longer_mask).loss, whole.loss)
    parts = [model(tokens[i : i + 1], mask[i : i + 1], counts).loss for i in range(2)]
    torch.testing.assert_close(sum(parts), whole.loss)


def test_nothing_supervised_is_no_loss_and_no_gradient() -> None:
    target = tiny_target("llama")
    model = EagleTrainingModel(target, tiny_draft(target), STEPS)
    for length in (1, 2, LENGTH):
        loss = model(some_tokens(1, length), torch.zeros(1, length, dtype=torch.bool)).loss
        assert loss == 0
        assert not any(g.any() for g in gradients(model, loss).values())


def test_the_target_has_no_gradients_and_stays_in_evaluation() -> None:
    target = tiny_target("gpt2")
    model = EagleTrainingModel(target, tiny_draft(target)).train()
    model(some_tokens(), torch.ones(2, LENGTH, dtype=torch.bool)).loss.backward()
    assert all(p.grad is None for p in target.parameters())
    assert not any(module.training for module in target.modules())
    assert all(p.grad is not None for p in model.draft.parameters())
    assert target.max_positions == CONTEXT
