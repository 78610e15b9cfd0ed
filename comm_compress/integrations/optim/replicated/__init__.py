"""Optimizers that exchange something of their own between replicas, instead of gradients.

Read `exchange` first: what such an optimizer asks, and of whom. `attach` answers over real ranks, `virtual` for many
replicas in one process; `optimizer` is what all such optimizers have in common, and each has a file of its own, which
reads like its paper: `demo`, `onebit_adam`, `zero_one_adam`, `dion`, `ef21_muon`. `parts` is what several are made of.
"""
