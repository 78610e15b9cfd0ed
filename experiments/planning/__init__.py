"""The command `fsdp-lab plan`: devices measured or read, a plan for them, and what its predictions are worth."""
