"""A model under DDP sends gradients and nothing else."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import comm_compress as cc
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.parallel.objectives import Replicated
from tests.distributed import run_ranks
from tests.fsdp_lab.parallel.models.test_divided import batch, fresh


def sent_in_forward() -> int:
    """Bytes that a forward sends, of an architecture whose rotary frequencies are a buffer."""
    group: Any = dist.group.WORLD
    replicated = Replicated(objective(fresh("llama")), group)
    assert list(replicated.hf.buffers())
    with cc.audit() as audit:
        replicated(batch("llama"))
    return audit.sent_bytes


def test_buffers_are_not_sent_in_every_forward() -> None:
    assert run_ranks(2, sent_in_forward) == [0, 0]
