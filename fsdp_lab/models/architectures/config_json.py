"""A model folder's config.json, checked before anything is built from it, because a stranger may have written it.

transformers looks for code in it (``auto_map``, an attention named like a repository) and believes its numbers: a width
of a million in a hundred thousand blocks takes gigabytes before the first weight is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsdp_lab.settings.reading.strict import load_json

_LARGEST_FILE = 16 << 20  # bytes: published ones have a few thousand, with rotary factors
_MOST_BLOCKS = 1024  # published models have up to 130
_LARGEST_SIZE = 1 << 24  # a width, a vocabulary, a number of heads
_LONGEST_CONTEXT = 1 << 30
_SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), _MOST_BLOCKS),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), _LONGEST_CONTEXT),
    **dict.fromkeys(("hidden_size", "n_embd", "intermediate_size", "n_inner", "vocab_size", "head_dim"), _LARGEST_SIZE),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), _LARGEST_SIZE),
}
_NAMES_OF_CODE = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def read_config_json(folder: Path, key: str) -> dict[str, Any]:
    """The settings of a saved Hugging Face model; ``key`` is the flag that named ``folder``.

    ValueError when there are none, when they are no JSON object, and for sizes that no model has.
    """
    path = folder / "config.json"
    if not path.is_file() and (folder / "adapter_config.json").is_file():
        advice = "give the folder of the merged weights (of a run of ours: the one above)"
        raise ValueError(f"{key}: {folder} holds adapters alone, which are no model; {advice}")
    if not path.is_file():
        raise ValueError(f"{key}: {folder} holds no config.json: not a saved Hugging Face model")
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, which no configuration has")
        settings = load_json(path.read_bytes())
        if not isinstance(settings, dict):
            raise ValueError("it is not a JSON object")
        _check_sizes(settings)
        _check_names(settings)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key}: {path} cannot be used: {error}") from None
    return settings


def brings_code(settings: dict[str, Any]) -> bool:
    """Whether a folder says that its own Python is to be run (``auto_map``)."""
    return bool(settings.get("auto_map"))


def _check_sizes(settings: dict[str, Any]) -> None:
    for name, most in _SIZES.items():
        value = settings.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise ValueError(f"{name} is {_shown(value)}, wants a whole number of 1 to {most:,}")


def _check_names(settings: dict[str, Any]) -> None:
    for name in _NAMES_OF_CODE:
        value = settings.get(name)
        if value is not None and (not isinstance(value, str) or "/" in value):
            raise ValueError(f"{name} is {_shown(value)}: an implementation that would be fetched is never used")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
