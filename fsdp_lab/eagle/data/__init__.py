"""Conversations: read, tokenised, answered anew by the target, with what the target sees of them."""
