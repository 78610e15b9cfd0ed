"""The draft: one decoder layer that reads a token's embedding beside the target's (later its own) hidden state.

Names of parameters and buffers are those of the checkpoints that serving engines load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, apply_rotary_pos_emb

from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of new rows: query ``[B, heads, T, head_dim]``, key, value ``[B, kv_heads, T, head_dim]`` -> as the query.

Which older rows it sees is decided inside: nothing else differs between training and decoding."""

Rotation = tuple[Tensor, Tensor]
_FIXED_ROPE = ("default", "linear", "llama3")  # others change with the length of the sequence, or their scores' scale


@dataclass(frozen=True)
class DraftShape:
    """The sizes of a draft. ``rope``: transformers' ``rope_parameters``; ``layers``: those of the target it reads."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[int, ...]
    rms_norm_eps: float = 1e-6
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})

    @classmethod
    def like(cls, target: Target) -> DraftShape:
        """One layer of the target's own sizes, with its rotary base (10,000 for GPT-2, which has none)."""
        config = target.config
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        rope = dict(getattr(config, "rope_parameters", None) or {})
        if rope.get("rope_type", "default") not in _FIXED_ROPE:
            rope = {"rope_theta": rope["rope_theta"]}
        return cls(
            hidden_size=hidden,
            intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * hidden),
            num_heads=heads,
            num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
            max_positions=target.max_positions,
            layers=tuple(target.layers),
            rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
            rope={"rope_type": "default", "rope_theta": 10000.0} | rope,
        )

    def llama(self) -> LlamaConfig:
        """These sizes as a configuration of transformers."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_hidden_layers=1,
            max_position_embeddings=self.max_positions,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope),
            tie_word_embeddings=False,
        )


class _Attention(nn.Module):
    """The projections of Llama's attention, with an input of width 2h."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width, self.head_dim = 2 * shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(width, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        out: Tensor = self.o_proj(attend(query, key, value).transpose(1, 2).flatten(-2))
        return out


class MidLayer(nn.Module):
    """``[B, T, h]`` embeddings and ``[B, T, h]`` hidden states -> the next hidden states, before the last norm."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = LlamaMLP(shape.llama())

    def forward(self, embedded: Tensor, hidden: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """The hidden states of rows at the positions of ``rotation``; ``attend`` decides which rows they see."""
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, rotation, attend)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Draft(nn.Module):
    """EAGLE-3's draft model. It has no embedding of its own: it reads the target's."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: DraftShape, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, vocabulary.draft_size, bias=False)
        self._rotary = [LlamaRotaryEmbedding(shape.llama())]  # no submodule: its float32 must not become bf16
        self.register_buffer("d2t", vocabulary.d2t.clone())
        self.register_buffer("t2d", vocabulary.t2d.clone())

    @classmethod
    def fresh(cls, target: Target, vocabulary: Vocabulary, seed: int) -> Draft:
        """A new draft with random weights from ``seed``, but the target's head, restricted to the draft's tokens.

        With that head a hidden state gives the same logits as in the target.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            draft = cls(DraftShape.like(target), vocabulary)
        draft.lm_head.weight.data.copy_(target.head[vocabulary.used.to(target.head.device)])
        return draft

    @property
    def vocabulary(self) -> Vocabulary:
        """Which of the target's tokens the draft knows."""
        return Vocabulary(self.d2t, self.t2d)

    @property
    def used(self) -> Tensor:
        """The target ids of the draft's tokens, int64 ``[D]``."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def check_target(self, config: Any) -> None:
        """Raises ValueError when the draft was made for a target of other sizes than those in ``config``."""
        own, theirs = (len(self.t2d), self.shape.hidden_size), (int(config.vocab_size), int(config.hidden_size))
        if own != theirs:
            raise ValueError(
                f"draft: made for a target of {own[0]:,} tokens and hidden size {own[1]}, "
                f"this one has {theirs[0]:,} and {theirs[1]}"
            )

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features ``[..., 3h]``, in its dtype -> hidden states ``[..., h]`` in the draft's dtype."""
        out: Tensor = self.fc(features.to(self.fc.weight.dtype))
        return out

    def rotate(self, like: Tensor, positions: Tensor) -> Rotation:
        """Cosine and sine ``[1, T, head_dim]`` of ``positions`` int64 ``[T]``, in ``like``'s dtype."""
        cos, sin = self._rotary[0].to(like.device)(like, positions[None])
        return cos, sin

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., D]`` over the draft's own vocabulary."""
        return F.linear(self.norm(hidden), self.lm_head.weight)
