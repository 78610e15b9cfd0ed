"""Benchmarks: one a question, each with its command. Begin with `trainer.harness`, the shortest one of whole runs."""
