"""The conversations that a draft learns from. Read `tokens` first, then `chats` (one training's batches of them).

`conversations` reads files, `chat_template` and `prompts` know what the assistant says and is asked, `regenerate` has
the target answer every question, `features` keeps what the target sees of each conversation.
"""
