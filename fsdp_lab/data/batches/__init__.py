"""From tokens to the batches of each rank, exactly resumable. Read `loader` first (one corpus), then `streaming`."""
