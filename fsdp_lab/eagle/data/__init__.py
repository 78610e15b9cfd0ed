"""The conversations that a draft learns from. Read `tokens` first, then `chats` (one training's batches of them).

`fsdp_lab.data.chats` reads files and knows what the assistant says in them, `prompts` what it is asked; `regenerate`
has the target answer every question, `features` keeps what the target sees of each conversation.
"""
