"""Methods by parameter name: which names a pattern matches, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import comm_compress as cc
from comm_compress.integrations import ddp
from comm_compress.wrappers.by_layer import matches, unwrapped
from tests.comm_compress.integrations.test_fsdp import Net
from tests.comm_compress.table import build
from tests.distributed import run_ranks


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("blocks.0.weight", "blocks.0.weight"),
        ("_orig_mod.blocks.0.weight", "blocks.0.weight"),
        ("_forward_module.module.blocks.0.weight", "blocks.0.weight"),
        ("blocks.0._checkpoint_wrapped_module.mlp._orig_mod.weight", "blocks.0.mlp.weight"),
        ("_fsdp_wrapped_module.module.module.head.bias", "head.bias"),
        ("encoder.module.weight", "encoder.module.weight"),
        ("module", "module"),
    ],
)
def test_names_lose_what_wrappers_put_into_them(name: str, plain: str) -> None:
    assert unwrapped(name) == plain
    assert matches(name, plain)
    assert matches(name, name), "whoever wrote the wrapper's name down meant it"


class Wrapped(nn.Module):
    """What Lightning's Fabric makes of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward_module(x)


LAYERS = {"layers": {"blocks.*.weight": {"method": "topk", "k": 1}}, "block_size": 64}


def _sent(wrap: str) -> int:
    """Bytes of one step's gradients."""
    model: Any = Net()
    if wrap == "checkpoint":
        model.blocks = nn.ModuleList([checkpoint_wrapper(block) for block in model.blocks])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if wrap == "compile":
        model = torch.compile(model, backend="eager")
    if wrap == "fabric":
        model = Wrapped(model)
    handle = cc.attach(model, reduce_scatter=build("int8", LAYERS))
    x = torch.randint(13, (4, 6), generator=torch.Generator().manual_seed(dist.get_rank()))
    model(x).square().mean().backward()
    return handle.ledger.totals("reduce_scatter").sent_bytes


def _wrapped() -> list[int]:
    return [_sent(wrap) for wrap in ("", "checkpoint", "compile", "fabric")]


def test_a_wrapped_model_is_compressed_as_the_model_itself() -> None:
    for sent in run_ranks(2, _wrapped):
        assert len(set(sent)) == 1, sent


def _refusals() -> list[str]:
    messages = []

    def refused(attach: Any) -> None:
        try:
            attach()
        except ValueError as e:
            messages.append(str(e))

    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    typo = build("int8", {"layers": {"*.bias": "none", "bloks.0.weight": "topk"}})
    nested = build("int8", {"layers": {"*.bias": {"method": "bf16", "layers": {"*.weight": "int8"}}}})
    refused(lambda: cc.attach(model, reduce_scatter=typo))
    refused(lambda: cc.attach(model, all_gather=build("int8", {"layers": {"embed": "bf16"}})))
    refused(lambda: cc.attach(model, reduce_scatter=nested))
    refused(lambda: ddp.attach(DistributedDataParallel(Net()), typo))
    refused(lambda: cc.VirtualRanks(Net(), 2, [], reduce_scatter=typo))
    refused(lambda: ddp.attach(Net(), build("int8", {})))  # type: ignore[arg-type]
    return messages


def test_a_pattern_without_parameters_and_a_model_without_ddp_are_refused() -> None:
    words = [
        ["layers['bloks.0.weight'] matches no parameter", "'blocks.0.weight'"],
        ["layers['embed'] matches no parameter", "'embed.weight'"],
        ["bf16: layers['*.weight'] matches no parameter"],
        ["bloks.0.weight"],
        ["bloks.0.weight"],
        ["DistributedDataParallel", "Net", "comm_compress.attach"],
    ]
    messages = run_ranks(2, _refusals)[0]
    assert len(messages) == len(words)
    for message, expected in zip(messages, words, strict=True):
        assert all(word in message for word in expected), message
