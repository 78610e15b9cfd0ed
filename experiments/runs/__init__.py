"""Starting runs and their processes, in networks of their own where needed."""
