"""Activations of tensor and sequence parallelism: `Activations` says what is compressed, a `Place` exchanges them."""

from __future__ import annotations

from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.place import Place

__all__ = ["Activations", "Place"]
