"""Starting training runs and their processes. Begin with `training`."""
