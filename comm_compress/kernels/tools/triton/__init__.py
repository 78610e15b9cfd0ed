"""What kernels in Triton share: how they are launched, and the tiles that they work on."""
