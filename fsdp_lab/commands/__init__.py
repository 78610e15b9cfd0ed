"""The command ``fsdp-lab``: every command of the project under one name, and what only it has.

Read `table` first: which word runs which module. `main` finds the module and runs it as ``python -m`` would, so that
both ways do the same. `methods` shows what `reference` has made of the registry and of measurements; `doctor` looks at
the `machine`; `train` starts ranks; `completion` completes words on Tab.
"""
