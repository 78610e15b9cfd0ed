"""Models: presets, the wrapper that turns a Hugging Face causal LM into a loss, how it is sharded or played."""

from fsdp_lab.models.build import build_model, save_pretrained
from fsdp_lab.models.model import Model, Sharded

__all__ = ["Model", "Sharded", "build_model", "save_pretrained"]
