"""Replicas that reduce no gradients among themselves: what local steps and optimizers that communicate both need.

`fragments` says which parameters are exchanged at once, `preconditions` what must be true of replicas that begin,
`messages` how every replica's whole message goes to all others.
"""
