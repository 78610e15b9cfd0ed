"""What each method sends and what arrives, from captured gradients and parameters. Begin with `table`."""
