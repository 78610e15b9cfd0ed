"""What a training step computes: the operators of a model, how far they are from the processor's limit, drafts."""
