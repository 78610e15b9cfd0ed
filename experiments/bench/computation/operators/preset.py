"""The training of a preset that a benchmark is to measure, refused at once where it cannot be."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.bench.computation.operators.measure import vocabulary_of
from fsdp_lab.models.architectures.families import new_config
from fsdp_lab.models.sketch import Sketch
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.models.presets import PRESETS, resolve, unknown_preset

_BYTES = 16  # a parameter: weights, gradients and AdamW's two moments in float32


def config_of(model: str, batch_size: int | None, length: int | None, threads: int, precision: str) -> TrainConfig:
    """The settings of a preset's training; None: the preset's own, ``precision``: as --mixed_precision has it.

    ValueError for an unknown preset, or sequences that it cannot take.
    """
    if complaint := unknown_preset(model):
        raise ValueError(complaint)
    config = resolve(
        TrainConfig.of(
            model=model, batch_size=batch_size, max_length=length, threads=threads, mixed_precision=precision
        ),
        has_gpu=torch.cuda.is_available(),
    )
    context = PRESETS[model].shape.get("n_positions") or PRESETS[model].shape["max_position_embeddings"]
    if (config.data.max_length or 0) > context:
        raise ValueError(f"length: {config.data.max_length} is beyond {model}'s context of {context}")
    return config


def check_memory(config: TrainConfig, ranks: Ranks) -> None:
    """ValueError where weights, gradients, moments and whole logits cannot fit: before minutes are spent."""
    preset = PRESETS[str(config.model.model)]
    model = Sketch.of(new_config(preset.family, **{**preset.shape, "vocab_size": vocabulary_of(config)})).model
    parameters = sum(p.numel() for p in model.parameters())
    assert config.optim.batch_size is not None
    assert config.data.max_length is not None
    logits = 12 * config.optim.batch_size * config.data.max_length * vocabulary_of(config)
    needed = _BYTES * parameters + logits
    free = _free_bytes(ranks)
    if free is not None and needed > free:
        raise ValueError(
            f"model: {config.model.model} with {parameters:,} parameters takes {needed / 1e9:.1f} GB and activations; "
            f"{free / 1e9:.1f} GB are free here. Give a smaller preset, fewer --batch_size or a shorter --length"
        )


def _free_bytes(ranks: Ranks) -> float | None:
    if ranks.device.type == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
