"""The operators of a training step, the implementations of each, and what each implementation needs.

An implementation is torch's or a maintained library's; what is called plain is the formula in a few operations of
torch. ``naive`` is what a first implementation would do, ``best`` names those to prefer on each device, the first that
is available there. The preferences on a CPU follow measurements (docs/trainer/operators.md says how to); those on CUDA
follow published ones (docs/trainer/operators.md) and have not been measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = ("naive", "best", "default")
"""What stands for an implementation of every operator: the naive ones, the best here, and what no flag changes."""
PRECISIONS = ("fp32", "bf16")
"""What ``precision`` may be; it is the same setting as --mixed_precision."""
CUDA_ONLY = "trains on a CUDA device only"
_MODERN = ("qwen2", "qwen3", "llama", "minicpm")
_CAUSAL = ("gpt2", *_MODERN)
_ALL = (*_CAUSAL, "bert")


@dataclass(frozen=True)
class Choice:
    """One implementation of an operator.

    ``text`` says what it is. ``only_cuda``: why it does not run elsewhere (empty: it does). ``extra``: the extra of
    this package that brings its library. ``torch``: the first version that has it. ``half_on``: the devices where it
    takes 16-bit numbers only. ``only_fp32``: why it does not compute in 16 bits (empty: it does). ``families``: the
    only ones that have it (empty: all of its operator's).
    """

    text: str
    only_cuda: str = ""
    extra: str = ""
    torch: tuple[int, int] = (0, 0)
    half_on: tuple[str, ...] = ()
    only_fp32: str = ""
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operator:
    """What one operator is, and its implementations by name.

    ``default``: the implementation that models have where nothing is asked for, by family or for all (``""``).
    ``flag``: the setting of its own that says the default, where there is one. ``best``: by device, in order.
    """

    text: str
    choices: Mapping[str, Choice]
    naive: str
    default: Mapping[str, str]
    best: Mapping[str, tuple[str, ...]]
    families: tuple[str, ...] = _ALL
    flag: str = ""

    def default_of(self, family: str) -> str:
        """The implementation that a model of ``family`` has by default."""
        return self.default.get(family) or self.default[""]

    def choices_of(self, family: str) -> list[str]:
        """The implementations that there are for models of ``family``."""
        return [name for name, choice in self.choices.items() if not choice.families or family in choice.families]


def _liger(text: str, **more: Any) -> Choice:
    return Choice(f"Liger's {text}", "is made of Triton kernels, which run on a CUDA device only", "liger", **more)


OPERATORS: dict[str, Operator] = {
    "attention": Operator(
        "attention of a block",
        {
            "eager": Choice("plain matrices: all scores are held"),
            "sdpa": Choice("torch's scaled_dot_product_attention, which chooses a back end by itself"),
            "sdpa-math": Choice("its back end of plain matrices"),
            "sdpa-flash": Choice("its FlashAttention back end", half_on=("cuda",)),
            "sdpa-efficient": Choice("its memory-efficient back end", CUDA_ONLY),
            "sdpa-cudnn": Choice("its cuDNN back end", CUDA_ONLY, half_on=("cuda",)),
            "flex": Choice("torch's FlexAttention", CUDA_ONLY),
            "flash": Choice("the flash-attn package", CUDA_ONLY, extra="flash", half_on=("cuda",)),
        },
        naive="eager",
        default={"": "sdpa"},
        best={"cpu": ("sdpa",), "cuda": ("flash", "sdpa")},
        flag="attention",
    ),
    "rope": Operator(
        "rotary positions of queries and keys",
        {
            "plain": Choice("the formula, as transformers has it"),
            "compiled": Choice("the formula through torch.compile"),
            "liger": _liger("fused rotary embedding"),
        },
        naive="plain",
        default={"": "plain"},
        best={"cpu": ("plain",), "cuda": ("liger", "plain")},
        families=_MODERN,
    ),
    "cross_entropy": Operator(
        "head and loss",
        {
            "whole": Choice("all logits, then torch's cross_entropy"),
            "chunked": Choice(
                "a chunk of tokens at a time, loss and gradient together: on a CPU 32 MiB of logits", families=_CAUSAL
            ),
            "chunked-128mb": Choice("the same with 128 MiB of logits at a time, on any device", families=_CAUSAL),
            "torch": Choice(
                "torch's linear_cross_entropy, in chunks",
                torch=(2, 13),
                only_fp32="rounds the loss itself to 16 bits; give chunked, or --mixed_precision no",
                families=_CAUSAL,
            ),
            "liger": _liger("fused linear cross-entropy", families=_CAUSAL),
        },
        naive="whole",
        default={"": "chunked", "bert": "whole"},
        best={"cpu": ("chunked-128mb", "whole"), "cuda": ("liger", "chunked", "whole")},
    ),
    "rms_norm": Operator(
        "RMSNorm",
        {
            "plain": Choice("the formula, as transformers has it"),
            "torch": Choice("torch's rms_norm"),
            "compiled": Choice("the formula through torch.compile"),
            "liger": _liger("RMSNorm"),
        },
        naive="plain",
        default={"": "plain"},
        best={"cpu": ("torch",), "cuda": ("liger", "torch")},
        families=_MODERN,
    ),
    "layer_norm": Operator(
        "LayerNorm",
        {
            "plain": Choice("the formula in torch operations"),
            "torch": Choice("torch's layer_norm"),
            "liger": _liger("LayerNorm"),
        },
        naive="plain",
        default={"": "torch"},
        best={"cpu": ("torch",), "cuda": ("liger", "torch")},
        families=("gpt2", "bert"),
    ),
    "swiglu": Operator(
        "SwiGLU: the gate of an MLP",
        {
            "plain": Choice("silu, then the product, as transformers has it"),
            "compiled": Choice("the same through torch.compile"),
            "liger": _liger("fused SwiGLU"),
        },
        naive="plain",
        default={"": "plain"},
        best={"cpu": ("plain",), "cuda": ("liger", "plain")},
        families=_MODERN,
    ),
    "gelu": Operator(
        "GELU of an MLP",
        {
            "plain": Choice("the formula in torch operations"),
            "torch": Choice("torch's gelu"),
            "compiled": Choice("the formula through torch.compile"),
        },
        naive="plain",
        default={"": "plain", "bert": "torch"},
        best={"cpu": ("torch",), "cuda": ("torch",)},
        families=("gpt2", "bert"),
    ),
    "adamw": Operator(
        "AdamW's update",
        {
            "loop": Choice("torch's, a parameter at a time"),
            "foreach": Choice("torch's, an operation at a time for all parameters"),
            "fused": Choice("torch's, in one kernel"),
        },
        naive="loop",
        default={"": "fused"},
        best={"cpu": ("fused",), "cuda": ("fused",)},
    ),
    "compile": Operator(
        "torch.compile",
        {
            "off": Choice("not used"),
            "blocks": Choice("each block"),
            "whole": Choice("the whole model with its loss; FSDP2's hooks break it into a graph for each block"),
        },
        naive="off",
        default={"": "off"},
        best={"cpu": ("off",), "cuda": ("blocks", "off")},
        flag="compile",
    ),
    "checkpointing": Operator(
        "activation checkpointing",
        {
            "off": Choice("activations are kept for backward"),
            "blocks": Choice("each block computes its activations again in backward"),
        },
        naive="off",
        default={"": "off"},
        best={"cpu": ("off",), "cuda": ("off",)},
        flag="activation_checkpointing",
    ),
}


@dataclass(frozen=True)
class Conflict:
    """Implementations of two operators that cannot be had together, and why."""

    first: tuple[str, str]
    second: tuple[str, str]
    reason: str = field(compare=False)


_TWICE = "torch.compile of the blocks fuses it already"
_LIGER = (
    "torch.compile of the blocks makes kernels of its own in its place, and a fused kernel under it was an error where "
    "that was measured (docs/trainer/operators.md)"
)
CONFLICTS = (
    *(
        Conflict((operator, implementation), ("compile", extent), reason)
        for implementation, reason, operators in (
            ("liger", _LIGER, ("rope", "rms_norm", "layer_norm", "swiglu")),
            ("compiled", _TWICE, ("rope", "rms_norm", "swiglu", "gelu")),
        )
        for operator in operators
        for extent in ("blocks", "whole")
    ),
    Conflict(("cross_entropy", "liger"), ("compile", "whole"), _LIGER),
)
