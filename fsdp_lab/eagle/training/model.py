"""A draft and its target as the training loop sees them: sharded, and ready for compressed collectives."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from fsdp_lab.eagle.draft.config import EagleConfig
from fsdp_lab.eagle.draft.folder import load_draft
from fsdp_lab.eagle.draft.network import Draft
from fsdp_lab.eagle.draft.target import Target
from fsdp_lab.eagle.draft.vocabulary import Vocabulary
from fsdp_lab.eagle.training.training_time_test import EagleTrainingModel, shard
from fsdp_lab.models import Sharded
from fsdp_lab.models.build import DTYPES
from fsdp_lab.ranks.distributed import Ranks


class DraftModel(Sharded[EagleTrainingModel]):
    """A draft and its frozen target: only the draft is trained."""

    @property
    def updated(self) -> nn.Module:
        """The draft, which is all that the optimizer updates."""
        return self.module.draft


def load_target(config: EagleConfig) -> Target:
    """The frozen target on the CPU, unsharded; ValueError says what is wrong with its folder."""
    return Target.from_folder(Path(str(config.eagle.target_dir)), DTYPES[config.eagle.dtype])


def build_draft(config: EagleConfig, target: Target, vocabulary: Vocabulary, ranks: Ranks) -> DraftModel:
    """A new draft, or the one in ``draft_dir``, beside ``target``: both on the device, the draft sharded."""
    eagle, dtype = config.eagle, DTYPES[config.eagle.dtype]
    draft = load_draft(Path(eagle.draft_dir)) if eagle.draft_dir else Draft.fresh(target, vocabulary, config.run.seed)
    module = EagleTrainingModel(target, draft.float(), eagle.steps_ahead, eagle.step_decay).to(ranks.device)
    num_parameters = sum(p.numel() for p in draft.parameters())
    policy = MixedPrecisionPolicy(dtype, DTYPES[config.comm.comm_dtype], cast_forward_inputs=False)
    shard(module, ranks.mesh, policy, target=eagle.shard_target, reshard=config.comm.fsdp_reshard)
    return DraftModel(module, config.trained, num_parameters, eagle.dtype, flops_per_token=None)
