"""The draft's attention: over all positions at once in training, and over a cache in decoding.

Row t of training step k stands for drafting k + 1 tokens from position t: it sees the keys of step 0 up to t, which are
made from the target's features, and its own keys of steps 1 to k, made from what it drafted. Decoding with a cache sees
the same keys, so training and decoding give the same logits (tests/fsdp_lab/eagle/test_parity.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class TestTimeAttention:
    """The attention of the steps of a training-time test, in order; each forward pass needs a new object.

    ``attend`` takes and returns ``[B, heads, T, head_dim]`` (keys and values ``[B, kv_heads, T, head_dim]``).
    """

    __test__ = False  # its name is the paper's, not pytest's

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attention of the next step, whose keys and values later steps see too."""
        groups = query.shape[1] // key.shape[1]
        self._keys.append(key.repeat_interleave(groups, 1))
        self._values.append(value.repeat_interleave(groups, 1))
        if len(self._keys) == 1:
            causal: Tensor = F.scaled_dot_product_attention(query, self._keys[0], self._values[0], is_causal=True)
            return causal
        own_keys, own_values = torch.stack(self._keys[1:], -2), torch.stack(self._values[1:], -2)
        merge = _merged if query.device.type == "cpu" else masked
        return merge(query, self._keys[0], self._values[0], own_keys, own_values)


def masked(query: Tensor, key: Tensor, value: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
    """The definition: one masked attention over ``(k + 1) T`` keys, whose memory grows with T squared.

    ``own_keys`` and ``own_values`` ``[B, heads, T, k, head_dim]``: the keys and values that only their own row sees.
    """
    length, steps = query.shape[-2], own_keys.shape[-2]
    rows = torch.arange(length, device=query.device)
    causal, own = rows[:, None] >= rows, rows[:, None] == rows
    keys = torch.cat([key, *own_keys.unbind(-2)], -2)
    values = torch.cat([value, *own_values.unbind(-2)], -2)
    mask = torch.cat([causal, *[own] * steps], -1)
    out: Tensor = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return out


def _merged(query: Tensor, key: Tensor, value: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
    out: Tensor = _Merged.apply(query, key, value, own_keys, own_values)  # type: ignore[no-untyped-call]
    return out


class _Merged(torch.autograd.Function):
    """`masked` in memory linear in T: the result of torch's causal kernel is merged with each row's few own keys.

    The softmax over both follows from the kernel's log of its denominator, as in ring attention (arXiv 2310.01889).
    Given the merged output and denominator, the kernel's backward gives the gradient with respect to the causal keys.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
        causal, log_causal = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)
        scores = _own_scores(query, own_keys)
        log_all = torch.logsumexp(torch.cat([log_causal[..., None].to(scores.dtype), scores], -1), -1)
        share = (scores - log_all[..., None]).exp()  # [B, heads, T, k]
        rest = (log_causal - log_all).exp()
        out = (causal * rest[..., None] + (share[..., None] * own_values).sum(-2)).to(query.dtype)
        ctx.save_for_backward(query, key, value, own_keys, own_values, out, log_all.to(log_causal.dtype), share)
        result: Tensor = out
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        query, key, value, own_keys, own_values, out, log_all, share = ctx.saved_tensors
        d_query, d_key, d_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, out, log_all, 0.0, True
        )
        d_own_values = share[..., None] * grad[..., None, :]
        towards = (grad[..., None, :] * (own_values - out[..., None, :])).sum(-1)
        d_scores = (share * towards * query.shape[-1] ** -0.5)[..., None].to(query.dtype)
        d_query = d_query + (d_scores * own_keys).sum(-2)
        return d_query, d_key, d_value, d_scores * query[..., None, :], d_own_values.to(own_values.dtype)


def _own_scores(query: Tensor, own_keys: Tensor) -> Tensor:
    """The scores of each row's own keys, ``[B, heads, T, k]``, at least float32."""
    products = (query[..., None, :] * own_keys).sum(-1, dtype=torch.promote_types(query.dtype, torch.float32))
    scores: Tensor = products * query.shape[-1] ** -0.5
    return scores


class ChainCache:
    """The draft's keys and values during decoding; rows can be dropped from its end."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._keys is None else self._keys.shape[-2]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attention of new rows, which are appended to the cache, over all rows in it."""
        past = len(self)
        self._keys = key if self._keys is None else torch.cat([self._keys, key], -2)
        self._values = value if self._values is None else torch.cat([self._values, value], -2)
        length = query.shape[-2]
        groups = query.shape[1] // key.shape[1]
        keys, values = self._keys.repeat_interleave(groups, 1), self._values.repeat_interleave(groups, 1)
        rows = torch.arange(length, device=query.device)
        mask = None if length == 1 else rows[:, None] + past >= torch.arange(past + length, device=query.device)
        out: Tensor = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return out

    def crop(self, rows: int) -> None:
        """Keeps only the first ``rows`` rows of the cache."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[..., :rows, :], self._values[..., :rows, :]
