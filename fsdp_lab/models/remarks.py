"""What a user is told who trains in a way that has been seen to fail, or to cost more than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_lab.models.build import DTYPES
from fsdp_lab.models.model import Model
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig

_SMALL_MOMENTUM = 0.3  # 13 synchronisations bore it well
_TIME_CONSTANTS = 5  # of the momentum, 1 / (1 - momentum) synchronisations each: a training with fewer is short for it


def remarks(model: Model, config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    """What a user should know who trains in this way, and could not see in time: mostly nothing."""
    yield from _on_a_grid(config)
    yield from _on_adapters(model, config, ranks)
    yield from _on_few_synchronisations(config)


def _on_a_grid(config: TrainConfig) -> Iterator[str]:
    """A grid's step is a share of the weights: beside it the moves of a trained model are small."""
    settings = config.comm.param_config_json
    if config.model.model_dir is not None and settings.get("mode") == "grid" and settings.get("moves") is None:
        yield (
            "param_config_json: mode grid holds back moves below half its step, and at a small rate those of trained "
            "weights are far below it: a model of 135 million parameters lost 53 % of PPL so "
            '(docs/findings/pretrained.md); with moves=8 ("delta mode=grid step=0.1 moves=8") steps follow the moves'
        )


def _on_adapters(model: Model, config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    """What concerns who trains adapters; nothing without adapters."""
    if config.lora.lora_rank is None:
        return
    if config.model.model_dir is None:
        yield (
            f"lora_rank: adapters on random weights ({model.name}) test the system and make no useful model; "
            "--model_dir FOLDER fine-tunes saved weights"
        )
    frozen = [p.numel() for p in model.module.parameters() if not p.requires_grad]
    if ranks.world > 1 and not ranks.are_virtual and not config.comm.fsdp_keep_frozen:
        share = 100 * sum(frozen) / (sum(frozen) + model.row()["trainable_parameters"])
        yield (
            f"{share:.1f} % of the parameters are frozen, and FSDP2 gathers them in every forward and backward; "
            "--fsdp_keep_frozen sends them once, for which every rank keeps "
            f"{sum(frozen) * DTYPES[model.param_dtype].itemsize / 1e6:.1f} MB"
        )


def _on_few_synchronisations(config: TrainConfig) -> Iterator[str]:
    """What synchronisations find is added over 1 / (1 - momentum) of them: with few, much of it never is."""
    comm, (_, momentum) = config.comm, config.comm.outer_step
    count = (config.optim.max_steps or 0) // comm.outer_every
    has_outer_step = comm.outer != "none" and comm.outer_by_gradient != "all"
    if not has_outer_step or momentum <= _SMALL_MOMENTUM or not 0 < count * (1 - momentum) < _TIME_CONSTANTS:
        return
    yield (
        f"outer_momentum {momentum:g}: {count} synchronisations are few for it, papers' trainings have thousands; of "
        "13 a small model's MuLoCo ended a fifth of PPL lower, and DiLoCo a seventh, with --outer_learning_rate 1 "
        "--outer_momentum 0.3 than with 0.7 and 0.9 (docs/findings/one-chart.md#outer-rates)"
    )
