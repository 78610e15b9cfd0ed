"""The operators of a model, put in place once it is built: one file for each. Read `install` first.

A module keeps its name, its parameters and its hooks: only the ``forward`` of an instance is another function, so what
is sharded, saved and compressed stays the same.
"""

from fsdp_lab.models.operators.install import choices_for, install

__all__ = ["choices_for", "install"]
