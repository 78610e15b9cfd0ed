"""Kernels that make few bits of every number, with a scale for those that share one."""
