"""What the trainer and its tools cost: `harness` (over a bare loop), checkpoints, profiles, tokenizing, reports."""
