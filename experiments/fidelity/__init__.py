"""What each method sends and what arrives, from captured gradients and parameters. Begin with `table`.

`capture` saves them, `captured` reads them; `adam_updates` asks what becomes of Adam's steps.
"""
