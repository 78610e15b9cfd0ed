"""Kernels for CUDA tensors, written in Triton: the bytes of the reference."""
