"""Benchmarks: one file a question, each with its command. Begin with `harness`, the shortest one of whole runs."""
