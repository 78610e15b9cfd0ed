"""Every element in fewer bits: narrower floats, integers with a scale, powers of two, signs, bins, coded steps."""

from comm_compress.methods.quantisers import binned, cast, ecsq, float8, natural, qsgd, sign, taco, tahquant, uniform

__all__ = ["binned", "cast", "ecsq", "float8", "natural", "qsgd", "sign", "taco", "tahquant", "uniform"]
