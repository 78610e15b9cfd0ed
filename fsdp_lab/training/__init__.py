"""The parts of a training step: optimizer and schedule, loss scaling, compressed communication, evaluation.

Read `communication` first: it is all that the trainer knows of compression. Then `optim`: one optimizer step.
"""
