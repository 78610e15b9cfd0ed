"""Picks the kernels for the device that a tensor lies on.

CPU tensors go to numba. CUDA tensors go to Triton, where a topic has such kernels and Triton is installed. All others
go to the reference, which runs on any device.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Kernels = TypeVar("Kernels")


class Topic(Generic[Kernels]):
    """The kernels of one topic, a folder of this package: ``topic(tensor)`` gives those for the tensor's device.

    They are the module ``reference``, ``cpu`` or ``triton`` in that folder; the type is the protocol in its
    ``interface``, which mypy holds each of them to.
    """

    def __init__(self, folder: str) -> None:
        """``folder``: the dotted name of the package that the topic's implementations lie in."""
        self.folder = folder

    def __call__(self, tensor: Tensor) -> Kernels:
        """The kernels for the device that this tensor lies on."""
        kernels: Kernels = implementation(self.folder, "cpu" if tensor.is_cpu else tensor.device.type)
        return kernels

    def on(self, device: torch.device) -> Kernels:
        """The kernels for this device, where there is no tensor yet."""
        kernels: Kernels = implementation(self.folder, device.type)
        return kernels


@functools.cache
def implementation(folder: str, device_type: str) -> Any:
    """The module with a topic's kernels, imported when first used: importing numba takes a third of a second."""
    layer = "reference"
    if device_type == "cpu":
        layer = "cpu"
    elif device_type == "cuda" and has_triton(folder):
        layer = "triton"
    return importlib.import_module(f"{folder}.{layer}")


@functools.cache
def has_triton(folder: str) -> bool:
    """Is Triton installed (it comes with CUDA builds of torch), and does this topic have kernels in it?"""
    return all(importlib.util.find_spec(name) is not None for name in ("triton", f"{folder}.triton"))
