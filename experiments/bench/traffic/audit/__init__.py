"""The byte audit against the network interface's own counter: begin with `jobs`, then the command, `__main__`."""
