"""How a draft is trained. Read `training_time_test` first, then `soft_loss` (its loss) and `model` (its sharding)."""
