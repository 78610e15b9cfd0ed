"""What many small FSDP2 units cost: `ranks` measures it, on two ranks of this machine."""
