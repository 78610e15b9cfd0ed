"""Kernels that take every element for itself: casts, sums, residuals, what is finite, what has changed, random bits."""
