"""Buffers for what a collective needs while it runs, used by one collective after another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ALIKE = 4  # times larger or smaller: collectives that share a workspace


class Workspace:
    """Named buffers that grow to what was asked of them and stay.

    Fresh memory costs a CPU a page fault for every 4 KiB: decoding 64 MiB into it took three to five times as long
    (docs/log). So what lives no longer than one collective (messages, received rows, totals) goes where the last
    one's went. Two collectives that run at the same time need a workspace each.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], Tensor] = {}
        self._views: dict[tuple[str, torch.device], Tensor] = {}  # of each buffer, what was taken last
        self.size = 0
        """The bytes of the largest tensor that a collective with this workspace was told to be about."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialised tensor; what was taken under this name before is overwritten through it."""
        view = self._views.get((name, device))
        if view is not None and view.shape == shape and view.dtype == dtype:
            return view
        num_bytes = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get((name, device))
        if buffer is None or buffer.numel() < num_bytes:
            buffer = self._buffers[name, device] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        view = buffer[:num_bytes].view(dtype).view(shape)
        self._views.pop((name, device), None)
        if not view.is_inference():  # that one could not be written to outside of inference mode
            self._views[name, device] = view
        return view

    @property
    def num_bytes(self) -> int:
        """How many bytes all buffers hold together."""
        return sum(buffer.numel() for buffer in self._buffers.values())


class WorkspacePool:
    """As many workspaces as collectives ever ran at the same time: one, unless they go on behind computation.

    Where sizes are told, collectives of very different size have workspaces of their own: several small units under way
    at the same time would otherwise have as many workspaces of the largest unit's size.
    On CUDA each stream has its own: work that was enqueued in another one may still be using what was released here.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Workspace, int]] = []
        self._free: dict[int, list[Workspace]] = {}

    def acquire(self, device: torch.device, size: int = 0) -> Workspace:
        """Return a workspace that nobody uses; give it back with `release`.

        ``size``: bytes of the collective's tensor, by which the workspace nearest in size is chosen; 0: any will do.
        """
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        free = self._free.setdefault(stream, [])
        fitting = [w for w in reversed(free) if max(w.size, size) <= _ALIKE * min(w.size, size)] if size else free[-1:]
        if not fitting:
            fitting = [Workspace()]
            self._all.append((fitting[0], stream))
            free.append(fitting[0])
        workspace = min(fitting, key=lambda w: abs(w.size - size)) if size else fitting[0]
        workspace.size = max(workspace.size, size)
        free.remove(workspace)
        return workspace

    def release(self, workspace: Workspace) -> None:
        """Take back a workspace whose collective is over (CUDA: enqueued), and with it its tensors."""
        stream = next(stream for known, stream in self._all if known is workspace)
        self._free[stream].append(workspace)

    @property
    def num_bytes(self) -> int:
        """The bytes of all workspaces, those in use included."""
        return sum(workspace.num_bytes for workspace, _ in self._all)
