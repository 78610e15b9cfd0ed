"""What each rank runs of a divided model, with the loss of its family: `divided` first."""
