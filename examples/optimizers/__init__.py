"""Optimizers that send something themselves: Muon, and an outer optimizer between replicas."""
