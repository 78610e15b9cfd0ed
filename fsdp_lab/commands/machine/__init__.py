"""What `fsdp-lab doctor` looks at: this machine, and what of the project works on it."""
