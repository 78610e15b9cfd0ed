"""What methods cost in quality, and what predicts it."""
