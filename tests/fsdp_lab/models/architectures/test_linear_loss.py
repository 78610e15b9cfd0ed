"""The loss that never holds all logits, against the one that does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fsdp_lab.models.architectures import linear_loss
from fsdp_lab.models.architectures.linear_loss import LinearCrossEntropy

IGNORED = -100
VOCABULARY, WIDTH, ROWS_A_CHUNK = 701, 12, 8
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear_loss.CHUNK_BYTES, "cpu", 4 * VOCABULARY * ROWS_A_CHUNK)


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = (hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def outcome(loss: Loss, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Loss and both gradients of 0.3 times it, float64."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
    value = loss(leaves[0], leaves[1], targets)
    (0.3 * value).backward()
    return [x.double() for x in (value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None))]


def example(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    targets = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    targets[::5] = IGNORED
    return hidden, weight, targets


@pytest.mark.parametrize("rows", [1, 2, ROWS_A_CHUNK - 1, ROWS_A_CHUNK, ROWS_A_CHUNK + 1, 5 * ROWS_A_CHUNK + 3])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_loss_and_gradients_are_those_of_whole_logits(rows: int, dtype: torch.dtype, slack: float) -> None:
    case = example(rows)
    exact = outcome(whole, *case, torch.float64)
    for ours, theirs in zip(outcome(LinearCrossEntropy(IGNORED), *case, dtype), exact, strict=True):
        assert (ours - theirs).norm() <= slack * theirs.norm()


def test_a_target_that_is_all_but_certain_keeps_its_small_gradient_in_bf16() -> None:
    """1 - p is made in float32: from p in bf16 it would be 0 or 2^-8."""
    hidden, weight = torch.ones(1, 1), torch.tensor([[8.0], [0.0]])
    ours = outcome(LinearCrossEntropy(IGNORED), hidden, weight, torch.tensor([0]), torch.bfloat16)
    exact = outcome(whole, hidden, weight, torch.tensor([0]), torch.float64)
    for mine, theirs in zip(ours[1:], exact[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=0)


@pytest.mark.parametrize("rows", [1, ROWS_A_CHUNK, 5 * ROWS_A_CHUNK + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_evaluation_has_the_same_loss_and_counts_first_choices(rows: int, dtype: torch.dtype) -> None:
    hidden, weight, targets = (x.to(dtype) if x.is_floating_point() else x for x in example(rows))
    choices = (hidden @ weight.t()).argmax(1)
    targets = torch.where((torch.arange(rows) % 3 == 0) & (targets != IGNORED), choices, targets)
    head = LinearCrossEntropy(IGNORED)
    loss, right = head.loss_and_correct(hidden, weight, targets)
    assert loss == head(hidden, weight, targets)
    assert right == (choices == targets).sum()
    assert right > 0 or rows == 1  # whose only target is ignored


def test_of_equal_logits_only_the_first_is_a_choice() -> None:
    hidden, weight, targets = torch.ones(3, 1), torch.ones(4, 1), torch.tensor([0, 1, 3])
    assert LinearCrossEntropy(IGNORED).loss_and_correct(hidden, weight, targets)[1] == 1


def test_huge_logits_do_not_overflow() -> None:
    hidden, weight, targets = torch.full((3, 1), 1e4), torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1, 0])
    assert LinearCrossEntropy(IGNORED)(hidden, weight, targets).item() == 2e4


def test_a_nan_is_not_hidden() -> None:
    hidden, weight, targets = example(20)
    hidden[13] = float("nan")
    assert LinearCrossEntropy(IGNORED)(hidden, weight, targets).isnan()


def test_nothing_to_predict_is_no_loss_and_no_gradient() -> None:
    hidden, weight, targets = example(11)
    for value in outcome(LinearCrossEntropy(IGNORED), hidden, weight, targets.fill_(IGNORED), torch.float32):
        assert not value.any()


def test_memory_is_a_chunk_and_stays() -> None:
    hidden, weight, targets = example(100)
    loss = LinearCrossEntropy(IGNORED)
    first = loss(hidden, weight, targets)
    kept = loss.chunk(hidden, (ROWS_A_CHUNK, VOCABULARY), torch.float32)
    assert loss(hidden, weight, targets) == first
    assert loss.chunk(hidden, (ROWS_A_CHUNK, VOCABULARY), torch.float32).data_ptr() == kept.data_ptr()
    assert kept.untyped_storage().nbytes() == 4 * (VOCABULARY + 3) * ROWS_A_CHUNK  # rows begin lines of 16 floats


def test_chunks_are_as_large_as_was_asked() -> None:
    weight = torch.empty(VOCABULARY, WIDTH)
    assert LinearCrossEntropy(IGNORED).rows(weight) == ROWS_A_CHUNK
    assert LinearCrossEntropy(IGNORED, 5 * 4 * VOCABULARY).rows(weight) == 5
    assert LinearCrossEntropy(IGNORED, 1).rows(weight) == 1


def test_the_gradients_are_not_made_where_nobody_asks() -> None:
    hidden, weight, targets = example(9)
    weight.requires_grad_()
    with torch.no_grad():
        assert LinearCrossEntropy(IGNORED)(hidden, weight, targets).grad_fn is None
