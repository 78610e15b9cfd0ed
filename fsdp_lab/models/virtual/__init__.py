"""W ranks that one process plays (--virtual_ranks): they share one model under FSDP2, or are replicas."""
