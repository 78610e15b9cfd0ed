"""LoRA adapters in models of every family: what they begin with on any number of ranks, and what is saved of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, BertConfig, BertForPreTraining

from fsdp_lab.models.adapted import add_adapters, draw_adapters, plain_parameters
from fsdp_lab.models.architectures.families import new_config
from fsdp_lab.models.architectures.flops import flops_per_token, multiplying_parameters
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.settings.adapters import LAYERS, complete
from fsdp_lab.settings.groups import LoraConfig
from tests.distributed import preload, run_ranks
from tests.fsdp_lab.models.shards.test_sharding import built
from tests.fsdp_lab.models.tiny import CONTEXT, TINY, VOCABULARY, some_tokens

preload("fsdp_lab.models")
preload("peft")
RANK = 3
MODELS = ("gpt2", "qwen3", "llama-tied", "bert")


@pytest.fixture(scope="session")
def saved(tiny: Path) -> Path:
    """The folder of tiny models, with a BERT among them."""
    sizes = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 50}
    torch.manual_seed(1)
    model = BertForPreTraining(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tiny / "bert")
    return tiny


def hidden(model: Any) -> Tensor:
    """What the body of a sharded model makes of `some_tokens`, seen in the forward that gathers it."""
    seen: list[Tensor] = []
    batch = some_tokens()
    if model.module.hf.config.model_type == "bert":
        batch = torch.stack([batch, torch.zeros_like(batch), torch.full_like(batch, -100)], dim=-1)
        batch[:, 0, 2] = 1
    hook = model.module.hf.base_model.register_forward_hook(lambda *a: seen.append(a[2].last_hidden_state))
    with torch.no_grad(), hook:
        model.module(batch)
    return seen[0]


def trained_and_saved(folder: Path, out: Path) -> dict[str, Any]:
    """Every model with adapters as if they had been trained: what it computes, and what it had drawn."""
    from fsdp_lab.models import save_pretrained
    from fsdp_lab.models.adapted import adapter_parameters
    from fsdp_lab.models.shards.sharding import held, whole

    found = {}
    for name in MODELS:
        model, ranks = built(model_dir=str(folder / name), lora_rank=RANK, lora_targets="all-linear", seed=5)
        adapters = adapter_parameters(model.module.hf)
        drawn = {key: whole(p).numpy().copy() for key, p in adapters.items()}
        before = hidden(model).numpy()
        model.reshard()
        for i, p in enumerate(adapters.values()):
            change = 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
            local, chunks = held(p)
            for chunk in chunks:
                local[chunk.here] += change[chunk.whole]
        found[name] = drawn, before, hidden(model).numpy()
        save_pretrained(model, out / name, ranks)
    return found


@pytest.fixture(scope="module")
def runs(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What 1 rank and 2 ranks found, and where the 2 saved their models."""
    out = tmp_path_factory.mktemp("out")
    alone, together = (run_ranks(world, trained_and_saved, saved, out / str(world)) for world in (1, 2))
    return [*alone, *together], out / "2"


def loaded(folder: Path) -> Any:
    """transformers' own model of a folder, float32."""
    kind = AutoModelForPreTraining if folder.name == "bert" else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def run(model: Any) -> Tensor:
    """What the body of transformers' own model makes of `some_tokens`."""
    with torch.no_grad():
        output: Tensor = model.base_model(some_tokens()).last_hidden_state
    return output


@pytest.mark.parametrize("name", MODELS)
def test_every_rank_begins_alike_at_every_world_size_and_with_the_model_that_was_given(
    runs: Any, saved: Path, name: str
) -> None:
    found, _ = runs
    first = found[0][name][0]
    for drawn, before, _ in (of_rank[name] for of_rank in found):
        assert drawn.keys() == first.keys()
        assert all((drawn[key] == first[key]).all() for key in first), "bit for bit"
        torch.testing.assert_close(torch.from_numpy(before), run(loaded(saved / name)))
    ups = [key for key in first if ".lora_B." in key]
    assert len(ups) == len(first) / 2 == 2 * len(LAYERS["bert" if name == "bert" else TINY[name][0]])
    for up in ups:
        down = torch.from_numpy(first[up.replace("lora_B", "lora_A")])
        bound = 1 / math.sqrt(down.shape[1])  # of peft's own initialisation
        assert (first[up] == 0).all()
        assert 0.9 * bound < down.abs().max() <= bound


@pytest.mark.parametrize("name", MODELS)
def test_merged_weights_and_adapters_that_peft_loads_compute_what_was_trained(
    runs: Any, saved: Path, name: str
) -> None:
    found, out = runs
    trained = torch.from_numpy(found[-1][name][2])
    torch.testing.assert_close(torch.from_numpy(found[0][name][2]), trained, atol=1e-5, rtol=1e-5)
    base, merged = loaded(saved / name), loaded(out / name)
    assert (run(base) - trained).abs().max() > 0.1, "or anything would pass"
    torch.testing.assert_close(run(merged), trained, atol=1e-5, rtol=1e-5)
    adapted = PeftModel.from_pretrained(base, out / name / "adapter").eval()
    assert adapted.peft_config["default"].base_model_name_or_path == str(saved / name)
    torch.testing.assert_close(run(adapted.get_base_model()), trained, atol=1e-5, rtol=1e-5)
    by_peft = adapted.merge_and_unload().state_dict()
    for key, value in merged.state_dict().items():
        torch.testing.assert_close(value, by_peft[key], atol=1e-6, rtol=1e-6, msg=key)


def with_adapters(family: str, **settings: Any) -> Any:
    name = next(name for name, (kind, _) in TINY.items() if kind == family)
    model = Sketch.of(new_config(family, vocab_size=VOCABULARY, **TINY[name][1])).model
    add_adapters(model, complete(LoraConfig(**settings), family), None)
    return model


def test_a_models_own_random_weights_are_those_that_it_has_without_adapters() -> None:
    config = new_config("gpt2", vocab_size=VOCABULARY, **TINY["gpt2"][1])
    plain, adapted = Sketch.of(config), Sketch.of(config)
    add_adapters(adapted.model, complete(LoraConfig(lora_rank=2), "gpt2"), None)
    for sketch in (plain, adapted):
        sketch.allocate(sketch.model, torch.device("cpu"))
        sketch.draw(seed=7)
    weights = plain_parameters(adapted.model)
    assert weights.keys() == dict(plain.model.named_parameters()).keys()
    assert all(torch.equal(weights[name], p) for name, p in plain.model.named_parameters())
    assert not any(p.requires_grad for p in weights.values())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_only_adapters_are_trained(family: str) -> None:
    model = with_adapters(family, lora_rank=2)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert len(trained) == {"gpt2": 1, "llama": 2}[family] * 2 * 2  # layers, blocks, factors


def test_each_rank_drops_inputs_of_its_own_and_nobody_touches_the_global_generator_where_none_are_dropped() -> None:
    def seed_of(rank: int, **settings: Any) -> int:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            lora = LoraConfig(lora_rank=2, **settings)
            model = with_adapters("gpt2", lora_rank=2, **settings).to_empty(device="cpu")
            draw_adapters(model, lora, seed=7, rank=rank)
            return torch.initial_seed()

    assert seed_of(0) == seed_of(1) == 1
    dropping = {seed_of(0, lora_dropout=0.5), seed_of(1, lora_dropout=0.5)}
    assert len(dropping | {1}) == 3


def test_a_rank_that_is_none_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^lora_rank: 37 is more than attn.c_attn has itself: its smaller side is 36$"
    ):
        with_adapters("gpt2", lora_rank=37)
    assert with_adapters("gpt2", lora_rank=36) is not None


def test_frozen_weights_cost_no_gradient_of_their_own() -> None:
    plain = Sketch.of(new_config("gpt2", vocab_size=VOCABULARY, **TINY["gpt2"][1])).model
    model = with_adapters("gpt2", lora_rank=2)
    adapters = multiplying_parameters(model) - multiplying_parameters(plain)
    assert adapters == 2 * 2 * (36 + 3 * 36)
    spared = 2 * multiplying_parameters(plain)
    assert flops_per_token(model, 8) == flops_per_token(plain, 8) - spared + 6 * adapters
