"""Kernels that write small codes, and the positions of few elements, in as few bits as they need."""
