"""Measurements: benchmarks, emulated links, sweeps. Run from a checkout, python -m experiments.NAME.

`sweep` runs a whole comparison, so begin there. `runs` starts processes and `network` emulates links; the rooms above
them measure: `links`, `bench`, `fidelity`, `faults`, `drafts`."""

from fsdp_lab.extras import explain_missing_packages

explain_missing_packages()
