"""From tokens to each rank's batches, exactly resumable."""
