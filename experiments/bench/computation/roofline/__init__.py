"""Where a training step's time goes, and what of it the processor's arithmetic allows.

`step` makes some steps, `operator_times` reads a profile of them, `ceilings` measures what the machine can do,
`report` puts one over the other; ``fsdp-lab bench roofline`` runs them.
"""
