"""From the files that torch.profiler writes to what each thread did when. Read `activity` first: it has the rules."""
