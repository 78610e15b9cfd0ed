"""The groups of a training run's settings: every flag of ``fsdp_lab.train``, its default and what it means.

A field of a group is the flag of the same name and the YAML key of the same name (`fsdp_lab.settings.reading.cli` reads
both); `fsdp_lab.settings.config` puts the groups together.
"""

from fsdp_lab.settings.groups.comm import CommConfig
from fsdp_lab.settings.groups.data import DataConfig
from fsdp_lab.settings.groups.lora import LoraConfig
from fsdp_lab.settings.groups.model import ModelConfig
from fsdp_lab.settings.groups.optim import BETWEEN_REPLICAS, OptimConfig
from fsdp_lab.settings.groups.parallel import ParallelConfig
from fsdp_lab.settings.groups.run import RunConfig

__all__ = [
    "BETWEEN_REPLICAS",
    "CommConfig",
    "DataConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "ParallelConfig",
    "RunConfig",
]
