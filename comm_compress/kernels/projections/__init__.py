"""Kernels beside the products of low-rank methods, and count-sketches."""
