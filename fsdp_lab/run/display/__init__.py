"""What a person sees of a run: progress while it trains, and the table at its end."""
