"""Other ways to divide a training over ranks than FSDP2 alone: replicas, tensor parallelism, a pipeline."""
