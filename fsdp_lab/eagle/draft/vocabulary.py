"""Which of the target's tokens the draft knows, and how ids of the draft become ids of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a draft knows. ``d2t`` int64 ``[D]``: draft id + d2t = target id.

    ``t2d`` bool ``[V]``: whether the draft knows a target id. Draft ids are in the order of target ids. ValueError when
    ``d2t`` and ``t2d`` contradict each other.
    """

    d2t: Tensor
    t2d: Tensor

    def __post_init__(self) -> None:
        problems = _problems(self.d2t, self.t2d)
        if problems:
            raise ValueError(f"vocabulary: {'; '.join(problems)}")

    @classmethod
    def of(cls, used: Tensor, target_size: int) -> Vocabulary:
        """The vocabulary of a draft that knows exactly the target ids ``used``, given in any order."""
        used = used.to(torch.int64).sort().values
        t2d = torch.zeros(target_size, dtype=torch.bool)
        t2d[used] = True
        return cls(used - torch.arange(len(used)), t2d)

    @classmethod
    def whole(cls, target_size: int) -> Vocabulary:
        """The vocabulary of a draft that knows every token of the target."""
        return cls.of(torch.arange(target_size), target_size)

    @property
    def draft_size(self) -> int:
        """The number of tokens that the draft knows: D."""
        return len(self.d2t)

    @property
    def target_size(self) -> int:
        """The number of tokens that the target has: V."""
        return len(self.t2d)

    @property
    def used(self) -> Tensor:
        """The target ids of all draft ids, int64 ``[D]``."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def save(self, path: Path) -> None:
        """Writes one safetensors file, completely or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        save_file({"d2t": self.d2t.contiguous(), "t2d": self.t2d.contiguous()}, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path, target_size: int | None = None) -> Vocabulary:
        """Reads a file of `save` or the weights of any draft. ValueError: no such file, or of another target."""
        try:
            tensors = load_file(path)
            vocabulary = cls(tensors["d2t"], tensors["t2d"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ValueError(f"vocabulary: {path} holds no d2t and t2d ({error})") from None
        if target_size is not None and vocabulary.target_size != target_size:
            raise ValueError(
                f"vocabulary: {path} is for a target of {vocabulary.target_size:,} tokens, this one has {target_size:,}"
            )
        return vocabulary


def count_tokens(tokens: Iterable[Tensor], target_size: int) -> Tensor:
    """How often each target id occurs, int64 ``[V]``."""
    counts = torch.zeros(target_size, dtype=torch.int64)
    for ids in tokens:
        counts += torch.bincount(ids.flatten(), minlength=target_size)
    return counts


def most_frequent(counts: Tensor, draft_size: int, always: Iterable[int] = ()) -> Vocabulary:
    """The vocabulary of the ``draft_size`` most frequent tokens, with ``always`` among them.

    Of equally frequent tokens (and of those that never occur) the smaller ids come first. ValueError when the draft
    would know more tokens than the target.
    """
    if not 0 < draft_size <= len(counts):
        raise ValueError(f"draft_vocab_size: got {draft_size}, wants 1 to the target's {len(counts)} tokens")
    wanted = counts.clone()
    forced = torch.tensor(sorted({i for i in always if 0 <= i < len(counts)}), dtype=torch.int64)
    if len(forced) > draft_size:
        raise ValueError(f"draft_vocab_size: got {draft_size}, but {len(forced)} special tokens must be in it")
    wanted[forced] = torch.iinfo(torch.int64).max
    order = wanted.sort(descending=True, stable=True).indices
    return Vocabulary.of(order[:draft_size], len(counts))


def _problems(d2t: Tensor, t2d: Tensor) -> list[str]:
    if d2t.dtype != torch.int64 or t2d.dtype != torch.bool or d2t.dim() != 1 or t2d.dim() != 1:
        return [
            f"wants d2t int64 [D] and t2d bool [V], got {d2t.dtype} {list(d2t.shape)}, {t2d.dtype} {list(t2d.shape)}"
        ]
    if d2t.device.type == "meta":
        return []
    used = d2t + torch.arange(len(d2t), device=d2t.device)
    if len(d2t) == 0 or int(used.min()) < 0 or int(used.max()) >= len(t2d):
        return [f"d2t leads to ids outside the target's 0 to {len(t2d) - 1}"]
    if bool((used.diff() <= 0).any()):
        return ["d2t does not lead to ascending target ids"]
    if not torch.equal(t2d.nonzero().flatten(), used):
        return [f"t2d marks {int(t2d.sum())} tokens, not the {len(used)} that d2t leads to"]
    return []
