"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import cast, control, gradiveq, identity, lowrank, sketch, sparsify, uniform

__all__ = ["cast", "control", "gradiveq", "identity", "lowrank", "sketch", "sparsify", "uniform"]
