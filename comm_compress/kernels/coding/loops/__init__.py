"""The CPU's loops over all symbols, for `entropy.cpu` and `streams.cpu`: counting, literals, blocks of rANS."""
