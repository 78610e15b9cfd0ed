"""Kernels that choose elements: by magnitude, or by lot."""
