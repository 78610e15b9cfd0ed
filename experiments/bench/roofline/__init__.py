"""Where a training step's time goes, and what of it the processor's arithmetic allows.

`operator_times` reads a profile of some steps, `ceilings` measures what the machine can do, `report` puts one over the
other; ``python -m experiments.bench.roofline`` runs them.
"""
