"""The draft, its target, its vocabulary, its settings, and its folder for serving engines. Read `network` first."""
