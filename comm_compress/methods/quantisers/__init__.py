"""Every element in fewer bits: narrower floats, integers with a scale, powers of two, signs, entropy-coded steps."""

from comm_compress.methods.quantisers import cast, ecsq, float8, natural, qsgd, sign, taco, tahquant, uniform

__all__ = ["cast", "ecsq", "float8", "natural", "qsgd", "sign", "taco", "tahquant", "uniform"]
