"""Styles for `parallelize_module` against torch's own: outputs and every gradient, with and without sequence shards."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel as stock

import comm_compress as cc
from comm_compress.integrations.parallel import styles
from comm_compress.integrations.parallel.places import operators
from tests.distributed import run_ranks


class Block(nn.Module):
    """A gated layer: two column-parallel matrices share an input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def plan(shards: bool, activations: cc.parallel.Activations | None) -> dict[str, Any]:
    ours = {"activations": activations} if activations is not None else {}
    styles: Any = stock if activations is None else cc.parallel
    if not shards:
        column = dict.fromkeys(("*.gate", "*.up"))
        return {**{k: styles.ColwiseParallel(**ours) for k in column}, "*.down": styles.RowwiseParallel(**ours)}
    desired = {"desired_input_layouts": Replicate()} if activations is None else {}
    return {
        "*": styles.PrepareModuleInput(input_layouts=Shard(1), **desired, **ours),
        "*.gate": stock.ColwiseParallel(),
        "*.up": stock.ColwiseParallel(),
        "*.down": styles.RowwiseParallel(output_layouts=Shard(1), **ours),
    }


def trained(shards: bool, method: str | None, by_us: bool) -> tuple[list[Tensor], str]:
    """Output, the input's gradient and every parameter's."""
    net = model()
    activations = cc.parallel.Activations(method, method, model=net) if by_us else None
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    stock.parallelize_module(net, mesh, plan(shards, activations))
    generator = torch.Generator().manual_seed(1 + shards * dist.get_rank())
    x = torch.randn(2, 3, 8, generator=generator).requires_grad_()
    y = net(x)
    y.pow(2).sum().backward()
    assert x.grad is not None
    gradients = [p.grad.full_tensor() for p in net.parameters() if isinstance(p.grad, DTensor)]
    return [y.detach(), x.grad, *gradients], "" if activations is None else activations.ledger.summary()


def _differences() -> list[str]:
    wrong = []
    for shards in (False, True):
        expected, _ = trained(shards, None, False)
        for method in (None, "identity"):
            found, _ = trained(shards, method, True)
            same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
            if not all(same) or len(same) != 14:
                wrong.append(f"shards {shards} {method}: {same}")
        _, said = trained(shards, "int8", True)
        if "MB sent" not in said or "not counted" in said:
            wrong.append(said)
    return wrong


def _broken() -> list[str]:
    with mock.patch.object(operators.Copy, "backward", staticmethod(lambda ctx, gradient: (gradient, None))):
        return _differences()


def _as_before_torch_2_13() -> list[str]:
    with mock.patch.object(styles, "_SAYS_GRADIENTS", False):
        return _differences()


def test_identity_is_torchs_own_styles_bit_for_bit() -> None:
    assert run_ranks(2, _differences) == [[]] * 2


def test_it_is_so_where_from_local_cannot_be_told_whose_gradients_they_are() -> None:
    assert run_ranks(2, _as_before_torch_2_13) == [[]] * 2


def test_a_gradient_that_is_not_summed_is_noticed() -> None:
    assert all(run_ranks(2, _broken))


def test_styles_need_the_model() -> None:
    with pytest.raises(ValueError, match="only one input from Shard"):
        cc.parallel.PrepareModuleInput(
            activations=cc.parallel.Activations(), input_layouts=Shard(1), use_local_output=True
        )
