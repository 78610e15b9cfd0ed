"""Named models, and the training settings that suit each where the user gave none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fsdp_lab.config import TrainConfig
from fsdp_lab.conflicts import check_data, check_virtual


@dataclass(frozen=True)
class Preset:
    """A GPT-2 shape (``GPT2Config`` names) and defaults for what depends on the model's size."""

    max_length: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    max_steps: int | None  # None: one epoch
    shape: dict[str, int] = field(default_factory=dict)


PRESETS = {
    # 5.4 million parameters, 4.8 of them GPT-2's vocabulary: minutes on a laptop's CPU
    "gpt2-nano": Preset(128, 4, 4e-3, 60, 320, {"n_embd": 96, "n_layer": 4, "n_head": 4, "n_positions": 1024}),
    # 62.3 million parameters
    "gpt2-62m": Preset(512, 16, 1e-3, 100, None, {"n_embd": 640, "n_layer": 6, "n_head": 10, "n_positions": 1024}),
    # the published shape of GPT-2 small, 124 million parameters
    "gpt2": Preset(512, 16, 6e-4, 100, None, {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}),
}
_LOADED = Preset(512, 8, 1e-4, 20, None)  # weights from a folder


def resolve(config: TrainConfig, has_gpu: bool) -> TrainConfig:
    """``config`` with nothing left open: the preset chosen, and its defaults where the user gave none.

    max_steps is the preset's only when the user gave neither max_steps nor num_epochs.
    Raises ValueError for an unknown preset, and for settings that do not go together.
    """
    check_virtual(config, has_gpu)
    check_data(config.data)
    model, data, optim = config.model, config.data, config.optim
    if model.model_dir is None:
        name = model.model or ("gpt2-62m" if has_gpu else "gpt2-nano")
        if name not in PRESETS:
            raise ValueError(
                f"model: no preset {name!r}; known: {', '.join(PRESETS)} (or --model_dir for saved weights)"
            )
        model, preset = replace(model, model=name), PRESETS[name]
    else:
        preset = _LOADED
    steps_open = optim.max_steps is None and optim.num_epochs is None
    return replace(
        config,
        model=model,
        data=replace(data, max_length=data.max_length or preset.max_length),
        optim=replace(
            optim,
            batch_size=optim.batch_size or preset.batch_size,
            learning_rate=optim.learning_rate or preset.learning_rate,
            warmup_steps=preset.warmup_steps if optim.warmup_steps is None else optim.warmup_steps,
            max_steps=preset.max_steps if steps_open else optim.max_steps,
            num_epochs=optim.num_epochs or 1,
        ),
    )
