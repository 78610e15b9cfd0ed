"""Named GPT-2 shapes. Dropout is off everywhere: these runs see each token about once."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, int]] = {
    # about 5 million parameters, nearly all of them the GPT-2 vocabulary: minutes on a laptop's CPU
    "gpt2-nano": {"n_embd": 96, "n_layer": 4, "n_head": 4, "n_positions": 1024},
    # 62.3 million parameters
    "gpt2-62m": {"n_embd": 640, "n_layer": 6, "n_head": 10, "n_positions": 1024},
    # the published shape of GPT-2 small, 124 million parameters
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
}


def preset(name: str | None, has_gpu: bool) -> tuple[str, dict[str, Any]]:
    """(name, GPT2Config arguments); without a name gpt2-62m on a GPU, else gpt2-nano. ValueError for an unknown one."""
    chosen = name or ("gpt2-62m" if has_gpu else "gpt2-nano")
    if chosen not in PRESETS:
        raise ValueError(f"model: no preset {chosen!r}; known: {', '.join(PRESETS)} (or --model_dir for saved weights)")
    return chosen, {**PRESETS[chosen], "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
