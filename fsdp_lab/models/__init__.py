"""Models: built from a preset or a folder, sharded over real ranks or shared by virtual ones. Read `build` first.

``architectures``: what can be trained, and its loss. ``saved``: Hugging Face folders, read and written.
``shards``: which part of a parameter a rank holds. ``operators``: what computes each operation.
"""

from fsdp_lab.models.build import build_model, save_pretrained
from fsdp_lab.models.model import Model, Sharded
from fsdp_lab.models.remarks import remarks

__all__ = ["Model", "Sharded", "build_model", "remarks", "save_pretrained"]
