"""Where compressors meet training: FSDP2, DDP, and virtual ranks in one process."""
