"""How a draft is trained: its model among the ranks, the training-time test, its loss and its tally."""
