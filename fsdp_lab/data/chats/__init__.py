"""Conversations of a user and an assistant as token sequences, of which the assistant's words are known.

`conversations` reads files, `chat_template` knows what the assistant says in them, `examples` makes tokens of both, and
`dataset` the sequences that a model is fine-tuned on. Drafts (`fsdp_lab.eagle`) learn from the same examples.
"""
