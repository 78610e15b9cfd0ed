"""The few hot primitives. A method calls these and never asks where its tensors live."""

from comm_compress.kernels.reference import absmax_dequantize, absmax_dequantize_sum, absmax_quantize, topk

__all__ = ["absmax_dequantize", "absmax_dequantize_sum", "absmax_quantize", "topk"]
