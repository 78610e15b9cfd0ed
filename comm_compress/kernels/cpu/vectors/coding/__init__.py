"""Vectors for entropy coding: states of rANS, tables in registers, bytes counted, distances of floats."""
