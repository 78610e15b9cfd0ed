"""BERT against transformers' own: its loss, every gradient, its weights, and what is written of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.bert.modeling_bert import BertForPreTraining

from fsdp_lab import chat
from fsdp_lab.data.batches.labels import IGNORED
from fsdp_lab.data.batches.masked.masking import num_chosen
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import blocks_of, new_config
from fsdp_lab.models.architectures.flops import flops_per_token, multiplying_parameters
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.models.saved.weights import save_folder
from fsdp_lab.models.sketch import Sketch

VOCABULARY, LENGTH = 61, 24


def config() -> Any:
    shape = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 50}
    return new_config("bert", vocab_size=VOCABULARY, max_position_embeddings=LENGTH, pad_token_id=57, **shape)


def plain(seed: int = 1) -> BertForPreTraining:
    torch.manual_seed(seed)
    return BertForPreTraining(config())


def stirred() -> BertForPreTraining:
    """Random weights, none of them zero or one (as biases and norms are after initialisation)."""
    model = plain()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def some_batch(rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    batch = torch.full((rows, LENGTH, 3), IGNORED)
    batch[..., 0] = torch.randint(VOCABULARY, (rows, LENGTH), generator=generator)
    batch[..., 1] = torch.arange(LENGTH) > torch.randint(3, LENGTH - 3, (rows, 1), generator=generator)
    for row in batch:
        at = 1 + torch.randperm(LENGTH - 2, generator=generator)[: num_chosen(LENGTH)]
        row[at, 2] = torch.randint(VOCABULARY, (len(at),), generator=generator)
    batch[:, 0, 2] = torch.arange(rows) % 2
    return batch


def loss_of_transformers(model: Any, batch: Tensor) -> Tensor:
    tokens, types, labels = batch.unbind(-1)
    masked = labels.clone()
    masked[:, 0] = IGNORED
    loss: Tensor = model(tokens, token_type_ids=types, labels=masked, next_sentence_label=labels[:, 0]).loss
    return loss


def test_loss_and_every_gradient_are_transformers_own_in_float64() -> None:
    batch, theirs, ours = some_batch(), stirred().double(), objective(stirred().double())
    expected = loss_of_transformers(theirs, batch)
    expected.backward()
    loss = ours(batch) / ours.num_targets(batch)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for (name, p), (_, q) in zip(ours.hf.named_parameters(), theirs.named_parameters(), strict=True):
        assert q.grad.abs().max() > 0, name
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_evaluation_sums_rows_that_count_and_no_others() -> None:
    batch, model = some_batch(), objective(stirred())
    with torch.no_grad():
        whole = model(batch, torch.ones(5))
        padded = model(torch.cat([batch, batch.new_zeros(2, LENGTH, 3)]), torch.tensor([1.0] * 5 + [0.0] * 2))
        loss = model(batch)
    torch.testing.assert_close(padded, whole)
    masked, right, pairs, pairs_right = whole
    torch.testing.assert_close(masked + pairs * num_chosen(LENGTH), loss)
    assert 0 <= right <= 5 * num_chosen(LENGTH)
    assert 0 <= pairs_right <= 5


def test_weights_are_the_plain_models_bit_for_bit_with_the_row_of_padding_zero() -> None:
    sketch = Sketch.of(config())
    module = objective(sketch.model)
    sketch.allocate(module, torch.device("cpu"))
    sketch.draw(1)
    expected = plain(1).state_dict()
    assert torch.equal(expected["bert.embeddings.word_embeddings.weight"][57], torch.zeros(36))
    for name, value in module.hf.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert list(blocks_of(module.hf)) == ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    assert module.hf.cls.predictions.decoder.weight is module.hf.bert.embeddings.word_embeddings.weight


def test_a_folder_goes_both_ways_also_with_the_names_of_published_ones(tmp_path: Path) -> None:
    model, batch = stirred(), some_batch()
    save_folder(model, tmp_path / "ours", writes=True)
    theirs, report = BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(loss_of_transformers(theirs.eval(), batch), loss_of_transformers(model.eval(), batch))
    path = tmp_path / "ours" / "model.safetensors"
    old = {key: value for key, value in load_file(path).items() if "LayerNorm" not in key}
    for key, value in load_file(path).items():
        if "LayerNorm" in key:
            old[key.replace("weight", "gamma").replace("bias", "beta")] = value
    old["bert.embeddings.position_ids"] = torch.arange(LENGTH)[None]
    save_file(old, path, metadata={"format": "pt"})
    again = load_pretrained(tmp_path / "ours")
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters(), strict=True))


def test_what_is_no_masked_model_is_refused_and_a_masked_model_does_not_talk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = plain()
    model.save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as left:
        chat.main(["--model_dir", str(tmp_path), "--prompt", "The"])
    assert left.value.code == 2
    assert "is a masked model" in capsys.readouterr().err
    model.config.is_decoder = True
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is_decoder"):
        load_pretrained(tmp_path)


def test_flops_count_the_head_by_its_share_of_positions() -> None:
    model = Sketch.of(config()).model
    head = 36 * 36 + 36 + 2 * 36 + VOCABULARY * 36 + VOCABULARY
    once = 36 * 36 + 36 + 2 * 36 + 2
    body = multiplying_parameters(model) - head - once
    expected = 6 * (body + head * num_chosen(LENGTH) / LENGTH + once / LENGTH) + 12 * 2 * 36 * LENGTH
    assert flops_per_token(model, LENGTH) == pytest.approx(expected)
