"""Local steps: replicas that train by themselves and synchronise every so many steps, by any method.

`attach` is where to begin: DiLoCo (arXiv 2311.08105), SparseLoCo (2508.15706), Streaming DiLoCo (2501.18512), MuLoCo
(2505.23725) and local SGD are settings of it (docs/library/local-steps.md). `VirtualReplicas` has many
replicas in one process.
"""

from __future__ import annotations

from comm_compress.integrations.outer.attach import Handle, attach
from comm_compress.integrations.outer.bits import bits
from comm_compress.integrations.outer.methods import check
from comm_compress.integrations.outer.optimizers import averaging, nesterov
from comm_compress.integrations.outer.schedule import Schedule
from comm_compress.integrations.outer.virtual import VirtualReplicas

__all__ = ["Handle", "Schedule", "VirtualReplicas", "attach", "averaging", "bits", "check", "nesterov"]
