"""An export is what engines expect, read by a loader that shares no code with the draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fsdp_lab.eagle.draft import export
from fsdp_lab.eagle.draft.finished import FORMATS
from fsdp_lab.eagle.draft.folder import check_export, load_draft, save_draft, verifier_of
from fsdp_lab.eagle.draft.formats import Verifier
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel
from tests.fsdp_lab.eagle.tiny import DRAFT_VOCABULARY, HIDDEN, VOCABULARY, tiny_draft, tiny_target

EMBEDDING = torch.arange(VOCABULARY * HIDDEN, dtype=torch.float32).view(VOCABULARY, HIDDEN)
VERIFIER = Verifier("org/target", ("LlamaForCausalLM",), num_drafts=5, embedding=EMBEDDING)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
NAMES = {  # of the checkpoints of the method's authors
    "d2t": [DRAFT_VOCABULARY],
    "t2d": [VOCABULARY],
    "fc.weight": [HIDDEN, 3 * HIDDEN],
    "norm.weight": [HIDDEN],
    "lm_head.weight": [DRAFT_VOCABULARY, HIDDEN],
    "midlayer.input_layernorm.weight": [HIDDEN],
    "midlayer.hidden_norm.weight": [HIDDEN],
    "midlayer.post_attention_layernorm.weight": [HIDDEN],
    "midlayer.self_attn.q_proj.weight": [48, 2 * HIDDEN],
    "midlayer.self_attn.k_proj.weight": [24, 2 * HIDDEN],
    "midlayer.self_attn.v_proj.weight": [24, 2 * HIDDEN],
    "midlayer.self_attn.o_proj.weight": [HIDDEN, 48],
    "midlayer.mlp.gate_proj.weight": [48, HIDDEN],
    "midlayer.mlp.up_proj.weight": [48, HIDDEN],
    "midlayer.mlp.down_proj.weight": [HIDDEN, 48],
}


def test_names_shapes_and_config_are_those_that_engines_read(tmp_path: Path) -> None:
    target = tiny_target("qwen3", torch.float32)
    save_draft(tiny_draft(target), tmp_path, VERIFIER)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == NAMES
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (VOCABULARY, DRAFT_VOCABULARY)
    assert (config["head_dim"], config["num_hidden_layers"], config["rope_scaling"]) == (12, 1, None)


def test_the_speculators_format(tmp_path: Path) -> None:
    target = tiny_target("llama", torch.float32)
    save_draft(tiny_draft(target), tmp_path, VERIFIER, "speculators")
    tensors = load_file(tmp_path / "model.safetensors")
    names = {name.replace("midlayer.", "layers.0.") for name in NAMES}
    assert tensors.keys() == names | {"embed_tokens.weight"}
    assert torch.equal(tensors["embed_tokens.weight"], EMBEDDING)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["LlamaForCausalLM"],
    }
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["rope_theta"], layer["vocab_size"]) == ("llama", 500.0, VOCABULARY)
    assert not {"d2t", "draft_vocab_size", "architectures", "eagle_config"} & layer.keys()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_what_is_written_is_what_is_read(family: str, fmt: str, tmp_path: Path) -> None:
    target = tiny_target(family)
    draft = tiny_draft(target)
    save_draft(draft, tmp_path, VERIFIER, fmt)
    assert check_export(draft, tmp_path) < 1e-6  # the rotary angles are float32
    again = load_draft(tmp_path)
    assert again.shape == draft.shape
    for name, tensor in draft.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_the_check_knows_other_rotary_types_and_sixteen_bits(tmp_path: Path) -> None:
    for family, dtype, rope in (
        ("llama", torch.float32, LLAMA3),
        ("llama", torch.float32, {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
        ("llama", torch.bfloat16, {"rope_type": "default", "rope_theta": 100.0}),
    ):
        target = tiny_target(family, dtype, rope_parameters=rope)
        draft = tiny_draft(target)
        assert draft.shape.rope == rope
        save_draft(draft, tmp_path, VERIFIER)
        assert load_draft(tmp_path).shape.rope == rope


@pytest.mark.parametrize("change", ["rope_theta", "midlayer.hidden_norm.weight", "swap", "draft_vocab_size"])
def test_the_check_sees_what_an_engine_would_stumble_over(change: str, tmp_path: Path) -> None:
    draft = tiny_draft(tiny_target("llama", torch.float32))
    save_draft(draft, tmp_path, VERIFIER)
    path, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(path)
    if change == "swap":
        q, k = "midlayer.mlp.gate_proj.weight", "midlayer.mlp.up_proj.weight"
        tensors[q], tensors[k] = tensors[k], tensors[q]
    elif change in config:
        config[change] += 1000
    else:
        tensors[change] = torch.ones_like(tensors[change])
    save_file(tensors, path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="export: "):
        check_export(draft, tmp_path)


def test_a_folder_that_is_no_draft_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no readable"):
        load_draft(tmp_path)
    save_draft(tiny_draft(tiny_target("llama")), tmp_path, VERIFIER)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "o_proj" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match=r"missing \['midlayer.self_attn.o_proj.weight'\]"):
        load_draft(tmp_path)


def test_the_command_writes_the_other_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tiny_target("llama", torch.float32)
    target.hf.save_pretrained(tmp_path / "target")
    save_draft(tiny_draft(target), tmp_path / "a", VERIFIER)
    words = ["--draft_dir", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--format", "speculators"]
    with pytest.raises(SystemExit, match="2"):
        export.main(words)  # org/target is no folder: there is no embedding
    assert "give the target's folder" in capsys.readouterr().err
    assert not (tmp_path / "b" / "config.json").exists()
    assert export.main([*words, "--target_dir", str(tmp_path / "target")]) == 0
    assert "speculators, logits differ by" in capsys.readouterr().out
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    said = config["speculators_config"]["verifier"]
    assert said == {"name_or_path": str(tmp_path / "target"), "architectures": ["LlamaForCausalLM"]}
    written = load_file(tmp_path / "b" / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, target.hf.get_input_embeddings().weight)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_speculators_library_computes_the_training_logits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself, where it is installed (docs/trainer/eagle.md): three steps of its training-time test."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    core = pytest.importorskip("speculators.models.eagle3.core")
    length = 128  # its attention wants multiples
    target = tiny_target(family, torch.float32, max_position_embeddings=2 * length)
    draft = tiny_draft(target)
    target.hf.save_pretrained(tmp_path / "target")
    save_draft(draft, tmp_path / "draft", verifier_of(str(tmp_path / "target"), embedding=True), "speculators")
    model = core.Eagle3DraftModel.from_pretrained(tmp_path / "draft").eval()
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, given, made: logits.append(made))
    tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    following = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
    with torch.no_grad():
        features = target(tokens).features
        model(features, following, torch.zeros(1, length, dtype=torch.long), ttt_steps=3)
        ours = [
            draft.logits(hidden)
            for hidden in EagleTrainingModel(target, draft, 3).unrolled(target.embed(tokens), features)
        ]
    assert len(logits) == len(ours) == 3
    for k, (mine, theirs) in enumerate(zip(ours, logits, strict=True)):
        known = length - 1 - k  # beyond, no token is known
        assert (mine - theirs)[:, :known].abs().max() < 1e-5 * theirs.abs().max()


def test_a_vocabulary_is_validated_and_kept(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of(torch.tensor([5, 2, 9]), 12)
    assert vocabulary.d2t.tolist() == [2, 4, 7]
    assert vocabulary.used.tolist() == [2, 5, 9]
    vocabulary.save(tmp_path / "v.safetensors")
    again = Vocabulary.load(tmp_path / "v.safetensors", 12)
    assert torch.equal(again.d2t, vocabulary.d2t)
    with pytest.raises(ValueError, match="for a target of 12 tokens, this one has 13"):
        Vocabulary.load(tmp_path / "v.safetensors", 13)
    for d2t, t2d, message in (
        (torch.tensor([2, 4, 20]), vocabulary.t2d, "outside the target's 0 to 11"),
        (torch.tensor([2, 0, 7]), vocabulary.t2d, "ascending"),
        (vocabulary.d2t, ~vocabulary.t2d, "t2d marks 9 tokens, not the 3"),
        (vocabulary.d2t.float(), vocabulary.t2d, "wants d2t int64"),
    ):
        with pytest.raises(ValueError, match=message):
            Vocabulary(d2t, t2d)
