"""Folders of saved models: what is read, what is refused, what is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fsdp_lab.models.architectures.causal_lm import CausalLM
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.models.saved import weights as weights_module
from fsdp_lab.models.saved.weights import SavedWeights, save_folder
from tests.fsdp_lab.models.tiny import TINY, logits_of, some_tokens


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(some_tokens()).logits
    return found


def test_a_digest_tells_weights_apart(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(tiny, "gpt2", tmp_path)
    digest = SavedWeights(folder).digest()
    assert digest == SavedWeights(tiny / "gpt2").digest()
    assert len(digest) == 32
    model = load_pretrained(folder)
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[-1] += 1e-3  # the last number of one tensor
    save_folder(model, folder, writes=True)
    assert SavedWeights(folder).digest() != digest
    monkeypatch.setattr(weights_module, "FILE_BYTES", 20_000)
    save_folder(model, tmp_path / "parts", writes=True)
    in_parts = SavedWeights(tmp_path / "parts").digest()
    *_, last = sorted((tmp_path / "parts").glob("*.safetensors"))
    tensors = load_file(last)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, last, metadata={"format": "pt"})
    assert SavedWeights(tmp_path / "parts").digest() != in_parts


@pytest.mark.parametrize("name", TINY)
def test_a_folder_is_read_as_transformers_reads_it(tiny: Path, name: str) -> None:
    found, expected = load_pretrained(tiny / name), logits_of(tiny / name)
    assert torch.equal(logits(found), expected)
    tokens = some_tokens()
    nats = F.cross_entropy(expected[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(CausalLM(found)(tokens), nats)
    prompt = tokens[:1, :4]
    chosen = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 256}
    theirs = AutoModelForCausalLM.from_pretrained(tiny / name).generate(prompt, **chosen)
    assert torch.equal(found.generate(prompt, **chosen), theirs)


def copied(tiny: Path, name: str, to: Path) -> Path:
    shutil.copytree(tiny / name, to / name)
    return to / name


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_gpt2_as_published_without_prefix_and_with_masks_in_bf16(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, "gpt2", tmp_path)

    def as_published(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {key.removeprefix("transformer."): value.bfloat16() for key, value in weights.items()}
        return {**named, "h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.1.attn.masked_bias": torch.tensor(-1e4)}

    rewrite(folder, as_published)
    found = load_pretrained(folder)
    assert next(found.parameters()).dtype == torch.float32
    assert torch.equal(logits(found), logits_of(folder))


def test_a_large_model_is_several_files(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "FILE_BYTES", 40_000)
    save_folder(load_pretrained(tiny / "qwen3"), tmp_path / "out", writes=True)
    files = sorted(tmp_path.glob("out/*.safetensors"))
    assert len(files) > 2
    assert all(path.stat().st_size < 45_000 for path in files)
    assert torch.equal(logits_of(tmp_path / "out"), logits_of(tiny / "qwen3"))
    assert torch.equal(logits(load_pretrained(tmp_path / "out")), logits_of(tiny / "qwen3"))


class Trap:
    """What unpickles as a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_read_only_when_trusted_and_even_then_run_nothing(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, "llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickles.*--trust_pickle"):
        load_pretrained(folder)
    assert torch.equal(logits(load_pretrained(folder, trust_pickle=True)), logits_of(tiny / "llama"))
    torch.save({"lm_head.weight": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="something else than tensors"):
        load_pretrained(folder, trust_pickle=True)
    assert not (tmp_path / "sprung").exists()


def test_an_index_names_no_file_outside_its_folder_and_no_pickle(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, "llama", tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = folder / "model.safetensors.index.json"
    for file, words in (("../model.safetensors", "not a file of its folder"), ("weights.bin", "trust_pickle")):
        (folder / "weights.bin").touch()
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": file}}))
        with pytest.raises(ValueError, match=words):
            load_pretrained(folder)
    index.write_text('{"weight_map": [')
    with pytest.raises(ValueError, match="no index of weights"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: {k: v for k, v in w.items() if k != "lm_head.weight"}, "no tensor for lm_head.weight"),
        (lambda w: {k: v for k, v in w.items() if "mlp" not in k}, r"no tensor for .* \(and 5 more\)"),
        (lambda w: {**w, "model.norm.weight": torch.ones(35)}, r"model.norm.weight has shape \(35,\).*\(36,\)"),
        (lambda w: {**w, "model.layers.2.x": torch.ones(1)}, "model.layers.2.x is no parameter of a llama"),
    ],
)
def test_weights_that_do_not_fit_their_config_are_refused(
    tiny: Path, tmp_path: Path, change: Callable[..., Any], words: str
) -> None:
    folder = copied(tiny, "llama", tmp_path)
    rewrite(folder, change)
    with pytest.raises(ValueError, match=words):
        load_pretrained(folder)


def test_unusable_folders_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, "llama", tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(ValueError, match=str(weights)):
        load_pretrained(folder)
    weights.unlink()
    with pytest.raises(ValueError, match=r"holds no model\.safetensors"):
        load_pretrained(folder)
    config = folder / "config.json"
    for text, words in (
        (
            '{"model_type": "mamba", "auto_map": {"AutoConfig": "evil.Config"}}',
            "'mamba'; known: gpt2, qwen2, qwen3, ll",
        ),
        ("{}", "None; known"),
        ("[]", "config.json"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "config.json"),
        ('{"model_type": ', "config.json"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_pretrained(folder)
    config.unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_pretrained(folder)


def test_an_export_has_what_from_pretrained_looks_for(tiny: Path, tmp_path: Path) -> None:
    save_folder(load_pretrained(tiny / "llama-tied"), tmp_path, writes=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors"), "tied: once"
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "float32")
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == "LlamaForCausalLM"
