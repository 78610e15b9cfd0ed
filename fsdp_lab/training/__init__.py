"""The parts of a training step: optimizer and schedule, loss scaling, compressed communication, evaluation."""
