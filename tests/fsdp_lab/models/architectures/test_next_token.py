"""The loss of conversations is the one that transformers takes of the same labels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.next_token import num_targets, tokens_and_targets
from tests.fsdp_lab.models.tiny import VOCABULARY, save_tiny, some_tokens


def labelled() -> torch.Tensor:
    """Three rows, of which one in three positions is labelled, the very first too, and nothing of the last row."""
    tokens = some_tokens()
    labels = tokens.clone()
    labels[:, torch.arange(tokens.shape[1]) % 3 > 0] = IGNORED
    labels[2] = IGNORED
    return torch.stack([tokens, labels], dim=-1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "minicpm"])
def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    hf = AutoModelForCausalLM.from_pretrained(save_tiny(family, tmp_path))
    batch = labelled()
    hf(batch[..., 0], labels=batch[..., 1]).loss.backward()
    expected = {name: p.grad for name, p in hf.named_parameters()}
    ours = objective(AutoModelForCausalLM.from_pretrained(tmp_path / family))
    loss = ours(batch) / ours.num_targets(batch)
    loss.backward()
    assert loss.item() == pytest.approx(hf(batch[..., 0], labels=batch[..., 1]).loss.item(), rel=1e-5)
    for name, parameter in ours.hf.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_padding_after_a_conversation_and_rows_that_do_not_count_change_nothing(tmp_path: Path) -> None:
    model = objective(AutoModelForCausalLM.from_pretrained(save_tiny("llama", tmp_path))).eval()
    batch = labelled()[:, :17]
    padding = torch.tensor([0, IGNORED]).expand(3, 7, 2)
    padded = torch.cat([batch, padding], dim=1)
    assert num_targets(padded) == num_targets(batch) == 2 * 5
    assert model(padded).item() == pytest.approx(model(batch).item(), rel=1e-6)
    loss, right = model(padded, torch.tensor([1.0, 0.0, 1.0])).tolist()
    assert loss == pytest.approx(model(batch[:1]).item(), rel=1e-6)
    logits = model.hf(batch[:1, :, 0]).logits[0, :-1]
    of_row = batch[0, 1:, 1]
    assert right == int((logits.argmax(-1) == of_row)[of_row != IGNORED].sum())


def test_of_text_every_token_but_the_first_is_predicted() -> None:
    text = torch.randint(VOCABULARY, (2, 5))
    tokens, targets = tokens_and_targets(text, torch.tensor([1.0, 0.0]))
    assert torch.equal(tokens, text)
    assert targets.tolist() == [[*text[0, 1:].tolist(), IGNORED], [IGNORED] * 5]
    assert num_targets(text) == 8
