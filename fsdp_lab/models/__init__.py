"""Models: presets, the wrapper that turns a Hugging Face causal LM into a loss, and how it is sharded."""

from fsdp_lab.models.build import Model, build_model, save_pretrained

__all__ = ["Model", "build_model", "save_pretrained"]
