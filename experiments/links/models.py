"""What slow links are measured on: a model that computes most of the time, one that waits for the link, or a preset."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_lab.settings.models.presets import PRESETS, Preset

_WIDE = Preset(16, 1, 1e-3, 100, None, {"n_embd": 512, "n_layer": 2, "n_head": 8, "n_positions": 16})


@dataclass(frozen=True)
class LinkModel:
    """A preset's name and the vocabulary to build it with (``gpt2``'s own is 50,257)."""

    preset: str
    vocabulary: int


MODELS = {
    # the trainer's default run: 5.4 million parameters, nearly all in the vocabulary, 4 x 128 tokens a step and rank
    "default": LinkModel("gpt2-nano", 50257),
    # 6.8 million parameters, nearly all in two blocks, one sequence of 16 tokens: little to compute for much to send
    "blocks": LinkModel("gpt2-wide-blocks", 1024),
}


def model_named(name: str) -> LinkModel:
    """One of these, or any preset of the trainer's with its own vocabulary. ValueError where there is no such."""
    if name in MODELS:
        return MODELS[name]
    if name not in PRESETS:
        raise ValueError(f"--model: {name!r} is none of {', '.join([*MODELS, *PRESETS])}")
    return LinkModel(name, PRESETS[name].vocab_size or 50257)


def register() -> None:
    """Make the presets that only these measurements use known to the trainer's own model building."""
    PRESETS["gpt2-wide-blocks"] = _WIDE
