"""Buffers for what a collective needs while it runs, used by one collective after another."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow to what was asked of them and stay.

    Fresh memory costs a CPU a page fault for every 4 KiB: decoding 64 MiB into it took three to five times as long
    (docs/log). So what lives no longer than one collective (messages, received rows, totals) goes where the last
    one's went. Two collectives that run at the same time need a workspace each.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], Tensor] = {}
        self._views: dict[tuple[str, torch.device], Tensor] = {}  # of each buffer, what was taken last

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
        """The bytes of all buffers."""
        return sum(buffer.numel() for buffer in self._buffers.values())


class WorkspacePool:
    """As many workspaces as collectives ever ran at the same time: one, unless gathers are prefetched.

    On CUDA each stream has its own: work that was enqueued in another one may still be using what was released here.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Workspace, int]] = []
        self._free: dict[int, list[Workspace]] = {}

    def acquire(self, device: torch.device) -> Workspace:
        """Return a workspace that nobody uses; give it back with `release`."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        free = self._free.setdefault(stream, [])
        if not free:
            free.append(Workspace())
            self._all.append((free[0], stream))
        return free.pop()

    def release(self, workspace: Workspace) -> None:
        """Take back a workspace whose collective is over (CUDA: enqueued), and with it its tensors."""
        stream = next(stream for known, stream in self._all if known is workspace)
        self._free[stream].append(workspace)

    @property
    def num_bytes(self) -> int:
        """The bytes of all workspaces, those in use included."""
        return sum(workspace.num_bytes for workspace, _ in self._all)
