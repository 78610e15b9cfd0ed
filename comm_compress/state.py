"""What a compressor remembers between steps, and how a step is taken back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class State:
    """Named tensors of one FSDP unit in one direction, with one uncommitted version of each.

    A step may turn out to be void after its gradients were encoded (a NaN in a unit that came later, on
    any rank). So a compressor proposes new tensors; they take effect when the unit is used next, unless
    `rollback` came first. The price is a second buffer for what is proposed.

    ``finite``: bool scalar tensor set by the caller before each collective: were all of this rank's
    inputs finite? A state must never absorb the others.
    """

    def __init__(self) -> None:
        self.finite: Tensor | None = None
        self._tensors: dict[str, Tensor] = {}
        self._proposed: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}

    def get(self, name: str) -> Tensor | None:
        """The committed tensor, or None before the first one."""
        return self._tensors.get(name)

    def spare(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A buffer to build the next version in (shape and device of ``like``), reused from step to step."""
        buffer = self._spare.pop(name, None)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != dtype or buffer.device != like.device:
            buffer = torch.empty(like.shape, dtype=dtype, device=like.device)
        return buffer

    def propose(self, name: str, tensor: Tensor) -> None:
        """Make ``tensor`` the next version of ``name``; the old one stays when this rank's input was not finite."""
        if self.finite is not None and tensor.is_cuda:  # decided on the device: no synchronisation in backward
            tensor = torch.where(self.finite, tensor, self._tensors.get(name, torch.zeros_like(tensor)))
        elif self.finite is not None and not bool(self.finite):
            self._spare[name] = tensor
            return
        self._proposed[name] = tensor

    def put(self, name: str, tensor: Tensor) -> None:
        """Set ``name`` at once, beyond recall (for callers that traded rollback for memory)."""
        self._tensors[name] = tensor

    def commit(self) -> None:
        """Let what was proposed take effect; the old versions become spare buffers."""
        for name, tensor in self._proposed.items():
            if name in self._tensors:
                self._spare[name] = self._tensors[name]
            self._tensors[name] = tensor
        self._proposed.clear()

    def rollback(self) -> None:
        """Forget what was proposed since the last commit."""
        self._spare.update(self._proposed)
        self._proposed.clear()

    @property
    def num_bytes(self) -> int:
        """Memory held, spare buffers included."""
        return sum(t.nbytes for group in (self._tensors, self._proposed, self._spare) for t in group.values())

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors as they stand, with proposals committed. Call it between steps."""
        self.commit()
        return dict(self._tensors)

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace everything by ``tensors``."""
        self._tensors = {name: t.clone() for name, t in tensors.items()}
        self._proposed.clear()
        self._spare.clear()
