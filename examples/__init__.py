"""Compressed collectives in other people's trainers: short programs to read, run and copy from. Begin with `fsdp2`."""
