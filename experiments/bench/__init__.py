"""Benchmarks: one file a question, each with its command."""
