"""The definition of every kernel, in torch operations: runs on any device, slowly."""
