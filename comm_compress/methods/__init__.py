"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import cast, delta, identity, sparsify, uniform

__all__ = ["cast", "delta", "identity", "sparsify", "uniform"]
