"""Activations of model parallelism: `Activations` says what is compressed, a `Place` exchanges it.

Of pipelines: `CompressedStage` encodes what stages send to each other.
"""

from __future__ import annotations

from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.pipeline import CompressedStage
from comm_compress.integrations.parallel.place import Place

__all__ = ["Activations", "CompressedStage", "Place"]
