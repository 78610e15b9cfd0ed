"""What each operator of a model's training step takes: naive, best, best without each, naive with each.

`arms` says which variants there are, `measure` measures one of them once, `turns` all in turn, `checks` compares its
losses and gradients with the naive ones, `report` makes JSON and a table of all; ``python -m
experiments.bench.computation.operators`` runs them.
"""
