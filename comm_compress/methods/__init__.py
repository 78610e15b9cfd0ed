"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import cast, dither, float8, identity, natural, sign, sparsify, uniform

__all__ = ["cast", "dither", "float8", "identity", "natural", "sign", "sparsify", "uniform"]
