"""Measurements: benchmarks, emulated links, sweeps. Run from a checkout, python -m experiments.NAME."""
