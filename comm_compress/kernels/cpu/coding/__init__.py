"""The loops over all symbols that `cpu.entropy` and `cpu.streams` are made of: counting, literals, blocks of rANS."""
