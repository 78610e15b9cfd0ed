"""Models under FSDP2 on real ranks, against transformers' own in one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.distributed import preload, run_ranks
from tests.fsdp_lab.models.tiny import CONTEXT, TINY, VOCABULARY, logits_of, some_tokens, tiny_config

preload("fsdp_lab.models")


def built(**settings: Any) -> tuple[Any, Any]:
    """A model on this rank of the group that exists, as the trainer builds it; and its ranks."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from fsdp_lab.models import build_model
    from fsdp_lab.ranks.distributed import Ranks
    from fsdp_lab.settings.config import TrainConfig
    from fsdp_lab.settings.models.presets import resolve

    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    ranks = Ranks(rank, world, rank, torch.device("cpu"), "gloo", mesh)
    config = resolve(TrainConfig.of(max_length=CONTEXT, **settings), has_gpu=False)
    return build_model(config, ranks, VOCABULARY, 256), ranks


def logits(model: Any) -> Tensor:
    """What the head makes of the body's output while both are gathered: in the root's forward."""
    hf, seen = model.module.hf, []

    def watch(body: Any, args: Any, output: Any) -> None:
        product = output.last_hidden_state @ hf.get_output_embeddings().weight.T
        seen.append(product / getattr(hf.config, "logits_scaling", 1.0))  # MiniCPM's

    with torch.no_grad(), hf.base_model.register_forward_hook(watch):
        model.module(some_tokens())
    return seen[0]


def load_compute_and_export(folder: Path, out: Path) -> dict[str, Any]:
    from fsdp_lab.models import save_pretrained

    found = {}
    for name in TINY:
        model, ranks = built(model_dir=str(folder / name))
        seen = logits(model).numpy()
        model.reshard()
        found[name] = seen, sum(p.to_local().numel() for p in model.module.parameters())
        save_pretrained(model, out / name, ranks)
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_logits_are_transformers_own_and_so_are_those_of_the_export(tiny: Path, tmp_path: Path, world: int) -> None:
    by_rank = run_ranks(world, load_compute_and_export, tiny, tmp_path)
    for name in TINY:
        expected = logits_of(tiny / name)
        assert expected.std() > 0.1, "or everything would be close to it"
        for found in by_rank:
            torch.testing.assert_close(torch.from_numpy(found[name][0]), expected, atol=1e-4, rtol=1e-4)
        whole = AutoModelForCausalLM.from_pretrained(tiny / name).num_parameters()
        assert sum(found[name][1] for found in by_rank) == whole, "sharded, each parameter once"
        assert torch.equal(logits_of(tmp_path / name), expected)


def draw(shapes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from fsdp_lab.settings.models.presets import PRESETS, Preset

    found = {}
    for name, (family, shape) in shapes.items():
        PRESETS[name] = Preset(CONTEXT, 1, 1e-3, 1, 1, shape, family)
        before = torch.get_rng_state()
        model, _ = built(model=name, seed=5)
        assert torch.equal(before, torch.get_rng_state()), "the global generator is nobody's business"
        hf = model.module.hf
        found[name] = {key: p.full_tensor().detach().numpy() for key, p in hf.named_parameters()}
        found[name] |= {key: buffer.numpy() for key, buffer in hf.named_buffers()}
        head, embedding = hf.get_output_embeddings().weight, hf.get_input_embeddings().weight
        assert (head is embedding) == hf.config.tie_word_embeddings
    return found


@pytest.mark.parametrize("world", [1, 3])
def test_weights_and_buffers_are_the_plain_models_bit_for_bit_at_every_world_size(world: int) -> None:
    by_rank = run_ranks(world, draw, TINY)
    for name in TINY:
        config = tiny_config(name)
        torch.manual_seed(5)
        plain = AutoModelForCausalLM.from_config(config)
        expected = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
        for found in by_rank:
            assert found[name].keys() == expected.keys()
            for key, value in expected.items():
                assert torch.equal(torch.from_numpy(found[name][key]), value), f"{name}: {key}"


def gradients(folder: Path) -> dict[str, list[Any]]:
    """Loss, gradients and how often a block computed, without and with recomputation."""
    import comm_compress as cc
    from fsdp_lab.models.architectures.families import blocks_of

    found = {}
    for name in ("gpt2", "qwen3"):
        for recomputed in (False, True):
            model, _ = built(model_dir=str(folder / name), activation_checkpointing=recomputed)
            calls = [0]

            def count(calls: list[int], module: Any, args: Any) -> None:
                calls[0] += 1

            first_block = next(iter(blocks_of(model.module.hf).values()))
            first_block.mlp.register_forward_pre_hook(partial(count, calls))
            cc.attach(model.module, reduce_scatter=cc.make("int8"), all_gather=cc.make("bf16"), prefetch=1)
            loss = model.module(some_tokens())
            loss.backward()
            parts = [p.grad.to_local().numpy() for p in model.module.parameters()]
            found[f"{name}-{recomputed}"] = [loss.item(), parts, calls[0]]
    return found


def test_recomputed_activations_give_the_same_gradients_bit_for_bit(tiny: Path) -> None:
    for found in run_ranks(2, gradients, tiny):
        for name in ("gpt2", "qwen3"):
            (loss, parts, calls), (same_loss, same_parts, more_calls) = found[f"{name}-False"], found[f"{name}-True"]
            assert (calls, more_calls) == (1, 2)
            assert same_loss == loss
            assert all((a == b).all() for a, b in zip(parts, same_parts, strict=True))
