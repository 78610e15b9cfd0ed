"""Compressed collectives for PyTorch FSDP2."""
