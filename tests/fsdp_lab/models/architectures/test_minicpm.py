"""MiniCPM against the published formula, written again here in plain torch; folders in and out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.models.architectures.causal_lm import CausalLM
from fsdp_lab.models.architectures.minicpm import MiniCPMConfig, MiniCPMForCausalLM
from fsdp_lab.models.build import load_pretrained
from fsdp_lab.models.saved.weights import save_folder
from fsdp_lab.models.sketch import Sketch

# a config.json as it is published: transformers 4's names for rotary positions, code of its own, no Granite
PUBLISHED: dict[str, Any] = {
    "architectures": ["MiniCPMForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
    "model_type": "minicpm",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 8,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": [2, 60],
    "torch_dtype": "bfloat16",
}
SHORT, LONG = [1.0, 1.5, 2.0, 2.5], [1.0, 3.0, 6.0, 9.0]


def longrope(trained: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": trained,
    }


ROTARY = {
    "plain": None,
    "linear": {"type": "linear", "factor": 4.0},
    "within": longrope(64),  # as MiniCPM4 is published: the short factors
    "stretched": longrope(16),  # the long ones, for every position, and larger cosines
}


def saved(folder: Path, tied: bool = True, **changed: Any) -> Path:
    """A folder with random weights that were never in a module of transformers."""
    from safetensors.torch import save_file

    settings = PUBLISHED | {"tie_word_embeddings": tied} | changed
    h, inner, kv = 32, 48, 16
    generator = torch.Generator().manual_seed(3)
    shapes = {"model.embed_tokens.weight": (61, h), "model.norm.weight": (h,)}
    for i in range(settings["num_hidden_layers"]):
        block = f"model.layers.{i}."
        shapes |= {f"{block}self_attn.{n}_proj.weight": (h, h) for n in "qo"}
        shapes |= {f"{block}self_attn.{n}_proj.weight": (kv, h) for n in "kv"}
        shapes |= {f"{block}mlp.{n}_proj.weight": (inner, h) for n in ("gate", "up")}
        shapes |= {f"{block}mlp.down_proj.weight": (h, inner)}
        shapes |= {f"{block}{n}_layernorm.weight": (h,) for n in ("input", "post_attention")}
    if not tied:
        shapes["lm_head.weight"] = (61, h)
    weights = {name: 0.3 * torch.randn(shape, generator=generator) + ("norm" in name) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def oracle(folder: Path, tokens: Tensor) -> Tensor:
    """Logits ``[T, V]``, float64, of one sequence: the published formula, from the files alone."""
    c = json.loads((folder / "config.json").read_text())
    w = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    width = c["hidden_size"] // c["num_attention_heads"]
    frequency = c["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    larger, scaling = 1.0, c.get("rope_scaling")
    if scaling is not None and scaling.get("type") == "linear":
        frequency = frequency / scaling["factor"]
    elif scaling is not None:
        stretch = c["max_position_embeddings"] / scaling["original_max_position_embeddings"]
        factors = scaling["long_factor"] if stretch > 1 else scaling["short_factor"]
        frequency = frequency / torch.tensor(factors, dtype=torch.float64)
        larger = math.sqrt(1 + math.log(stretch) / math.log(scaling["original_max_position_embeddings"]))
    angle = torch.arange(len(tokens), dtype=torch.float64)[:, None] * frequency
    cos, sin = larger * angle.cos().repeat(1, 2), larger * angle.sin().repeat(1, 2)

    def rotated(x: Tensor) -> Tensor:  # [T, width]
        return x * cos + torch.cat([-x[:, width // 2 :], x[:, : width // 2]], -1) * sin

    def norm(x: Tensor, name: str) -> Tensor:
        return w[name] * x / (x.square().mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt()

    branch = c["scale_depth"] / math.sqrt(c["num_hidden_layers"])
    x = w["model.embed_tokens.weight"][tokens] * c["scale_emb"]
    causal = torch.ones(len(tokens), len(tokens)).tril().bool()
    for i in range(c["num_hidden_layers"]):
        block = f"model.layers.{i}."
        y = norm(x, f"{block}input_layernorm.weight")
        q, k, v = (y @ w[f"{block}self_attn.{n}_proj.weight"].T for n in "qkv")
        heads = []
        for head in range(c["num_attention_heads"]):
            own = slice(head * width, (head + 1) * width)
            group = head // (c["num_attention_heads"] // c["num_key_value_heads"])
            theirs = slice(group * width, (group + 1) * width)
            scores = rotated(q[:, own]) @ rotated(k[:, theirs]).T / math.sqrt(width)
            heads.append(scores.masked_fill(~causal, -math.inf).softmax(-1) @ v[:, theirs])
        x = x + branch * (torch.cat(heads, -1) @ w[f"{block}self_attn.o_proj.weight"].T)
        y = norm(x, f"{block}post_attention_layernorm.weight")
        gate, up = (y @ w[f"{block}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + branch * (F.silu(gate) * up @ w[f"{block}mlp.down_proj.weight"].T)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    logits: Tensor = norm(x, "model.norm.weight") / (c["hidden_size"] / c["dim_model_base"]) @ head.T
    return logits


TOKENS = torch.randint(61, (40,), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("rotary", ROTARY)
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_logits_are_those_of_the_published_formula(tmp_path: Path, rotary: str, tied: bool) -> None:
    folder = saved(tmp_path / "model", tied, rope_scaling=ROTARY[rotary])
    expected = oracle(folder, TOKENS)
    model = load_pretrained(folder).eval()
    torch.testing.assert_close(model(TOKENS[None]).logits[0].double(), expected, rtol=1e-4, atol=1e-4)
    nats = F.cross_entropy(expected[:-1], TOKENS[1:], reduction="sum")
    torch.testing.assert_close(CausalLM(model)(TOKENS[None]).double(), nats, rtol=1e-5, atol=1e-5)
    target = Target.from_folder(folder, torch.float32)  # EAGLE's
    torch.testing.assert_close(target.logits(target(TOKENS[None]).last)[0].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rotary", ROTARY)
def test_a_folder_is_written_as_it_was_published(tmp_path: Path, rotary: str) -> None:
    folder = saved(tmp_path / "model", rope_scaling=ROTARY[rotary])
    save_folder(load_pretrained(folder), tmp_path / "out", writes=True)
    written, original = (load_file(place / "model.safetensors") for place in (tmp_path / "out", folder))
    assert written.keys() == original.keys()
    assert all(torch.equal(written[name], original[name]) for name in written)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    same = PUBLISHED.keys() - {"auto_map", "torch_dtype"}
    assert {name: config[name] for name in same} == {name: PUBLISHED[name] for name in same}
    assert "auto_map" not in config, "it names code that does not come with the folder"
    assert not [name for name in config if "multiplier" in name or name in ("logits_scaling", "rope_parameters")]
    torch.testing.assert_close(oracle(tmp_path / "out", TOKENS), oracle(folder, TOKENS), rtol=0, atol=0)


def test_random_weights_are_those_of_the_module(tmp_path: Path) -> None:
    settings = {name: value for name, value in PUBLISHED.items() if name != "auto_map"}
    config = MiniCPMConfig(**settings)
    torch.manual_seed(7)
    expected = MiniCPMForCausalLM(config).state_dict()
    sketch = Sketch.of(config)
    sketch.allocate(sketch.model, torch.device("cpu"))
    sketch.draw(7)
    found = sketch.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sparse_config": {"kernel_size": 32, "dense_len": 8192}}, "sparse attention.*remove sparse_config"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"dim_model_base": 0}, "dim_model_base is 0"),
        ({"scale_depth": -1.4}, "scale_depth is -1.4"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not computed here"),
        ({"rope_scaling": longrope(16) | {"short_factor": [1.0]}}, "short_factor wants 4 numbers"),
        ({"rope_scaling": longrope(16) | {"long_factor": [1.0, 2.0, 0.0, 1.0]}}, "long_factor wants numbers above 0"),
        ({"rope_scaling": longrope(128)}, "original_max_position_embeddings wants"),
        ({"rope_scaling": longrope(16) | {"factor": 8.0}}, "factor is not"),
        ({"rope_scaling": longrope(16) | {"attention_factor": 2.0}}, "attention_factor is not part"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    folder = saved(tmp_path / "model", **changed)
    with pytest.raises(ValueError, match=rf"model_dir: .*config\.json cannot be used: .*{words}"):
        load_pretrained(folder)
    with pytest.raises(ValueError, match=words):
        Target.from_folder(folder, torch.float32)
