"""The architecture of a saved model, as far as it must be known before the model is built."""

from __future__ import annotations

from pathlib import Path

from fsdp_lab.settings.reading.strict import load_json

_LARGEST_FILE = 16 << 20  # bytes of a config.json; a larger one is refused where the model is built


def model_type(folder: Path) -> str | None:
    """What the config.json in ``folder`` says that it is: "gpt2", "llama", ...

    None where it cannot be read: whoever builds the model says what is wrong with it.
    """
    path = folder / "config.json"
    try:
        saved = load_json(path.read_bytes()) if path.stat().st_size <= _LARGEST_FILE else None
    except (OSError, ValueError):
        return None
    named = saved.get("model_type") if isinstance(saved, dict) else None
    return named if isinstance(named, str) else None
