"""From the files that torch.profiler writes to what each thread was doing at each moment."""
