"""Measurements: benchmarks, emulated links, sweeps. Run from a checkout, python -m experiments.NAME."""

from fsdp_lab.extras import explain_missing_packages

explain_missing_packages()
